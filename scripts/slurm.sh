#!/bin/sh
#SBATCH --job-name=recsys-harness
#SBATCH --nodes=2
#SBATCH --exclusive
# Several nodes under Slurm, submitted from the checkout; its arguments go to main.py:
#
#     sbatch --nodes=4 --gpus-per-node=8 scripts/slurm.sh --dataset_path=/outbrain/data --model_dir=/outbrain/checkpoints
#
# horovodrun runs once, on the first node, and starts its ranks on the others through ssh; the checkout must lie at the
# same path on all of them. Ranks per node: RANKS_PER_NODE, else the GPUs per node, else the tasks per node, else 1.

fail() {
    printf 'slurm.sh: %s\n' "$*" >&2
    exit 2
}

# Slurm runs a copy of this file from its spool folder, so $0 does not say where the checkout is.
root=${SLURM_SUBMIT_DIR:-$(dirname -- "$0")/..}
[ -f "$root/scripts/launch.sh" ] || fail "no checkout at $root: submit from its root folder"
[ -n "${SLURM_JOB_NODELIST-}" ] || fail 'SLURM_JOB_NODELIST is not set: start it with sbatch (or inside salloc)'

ranks_per_node=${RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-${SLURM_NTASKS_PER_NODE:-1}}}
case $ranks_per_node in
    *[!0-9]* | 0*) fail "$ranks_per_node ranks per node: set RANKS_PER_NODE to a number from 1 on" ;;
esac

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || fail "scontrol could not read the nodes $SLURM_JOB_NODELIST"
ranks=0 hosts=
for node in $nodes; do
    hosts=$hosts${hosts:+,}$node:$ranks_per_node
    ranks=$((ranks + ranks_per_node))
done
exec sh "$root/scripts/launch.sh" slurm.sh --global_batch_size -- -g "$ranks" -H "$hosts" -- "$@"
