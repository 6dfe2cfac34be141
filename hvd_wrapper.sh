#!/bin/sh
# Gives each process of a job its own GPU, then becomes the command:
#
#     horovodrun -np 8 sh hvd_wrapper.sh python main.py ...
#
# The local rank is read from HOROVOD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK or SLURM_LOCALID; without any, the command
# runs as it is. Then, if CUDA_VISIBLE_DEVICES
#   lists devices                  the process keeps the entry at its local rank (indices, UUIDs and MIG ids alike);
#   is empty, -1 or NoDevFiles     GPUs are switched off: left alone;
#   is not set                     it becomes the local rank if this machine has NVIDIA GPUs, else it is left alone. CUDA
#                                  then counts GPUs as nvidia-smi does (CUDA_DEVICE_ORDER=PCI_BUS_ID, unless that is set
#                                  otherwise) and not by speed: near which CPUs a GPU is, the driver tells by its number.
# Too few devices for the local rank is an error, because the process would quietly train on the CPU. One exception: a
# single entry under SLURM_LOCALID is kept, because Slurm's GPU binding (srun --gpus-per-task=1) gives every task a list
# of its own with that one device in it.

fail() {
    printf 'hvd_wrapper.sh: %s\n' "$*" >&2
    exit 2
}

# Prints the number of NVIDIA GPUs that the driver shows, 0 without a driver.
count_gpus() {
    if command -v nvidia-smi >/dev/null 2>&1; then
        nvidia-smi -L 2>/dev/null | grep -c '^GPU '
    else
        set -- /proc/driver/nvidia/gpus/*
        if [ -e "$1" ]; then echo "$#"; else echo 0; fi
    fi
}

# Prints the device for this process, or nothing where CUDA_VISIBLE_DEVICES stays as it is. It runs in a subshell, so
# that its variables do not reach the command.
choose_device() {
    for name in HOROVOD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK SLURM_LOCALID; do
        eval "rank=\${$name-}"
        [ -z "$rank" ] || break
    done
    case $rank in
        '') exit ;;
        *[!0-9]*) fail "$name=$rank: expected a number from 0 on" ;;
    esac

    if [ -z "${CUDA_VISIBLE_DEVICES+set}" ]; then
        gpus=$(count_gpus)
        [ "$gpus" -eq 0 ] || [ "$rank" -lt "$gpus" ] ||
            fail "$name=$rank, but this machine has $gpus GPU(s): start at most $gpus processes on it"
        [ "$gpus" -eq 0 ] || printf '%s\n' "$rank"
        exit
    fi

    device=
    case $CUDA_VISIBLE_DEVICES in
        '' | -1 | NoDevFiles) exit ;;
        *,*) device=$(printf '%s\n' "$CUDA_VISIBLE_DEVICES" | tr -d ' ' | cut -d , -f "$((rank + 1))") ;;
        *) if [ "$rank" -eq 0 ] || [ "$name" = SLURM_LOCALID ]; then device=$CUDA_VISIBLE_DEVICES; fi ;;
    esac
    [ -n "$device" ] ||
        fail "$name=$rank, but CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES has no such entry: list a device per process"
    printf '%s\n' "$device"
}

[ "$#" -gt 0 ] || fail 'no command given; usage: sh hvd_wrapper.sh COMMAND [ARGUMENT...]'
hvd_wrapper_device=$(choose_device) || exit
if [ -n "$hvd_wrapper_device" ]; then
    if [ -z "${CUDA_VISIBLE_DEVICES+set}" ]; then
        CUDA_DEVICE_ORDER=${CUDA_DEVICE_ORDER:-PCI_BUS_ID}
        export CUDA_DEVICE_ORDER
    fi
    CUDA_VISIBLE_DEVICES=$hvd_wrapper_device
    export CUDA_VISIBLE_DEVICES
fi
exec "$@"
