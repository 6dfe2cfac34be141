#!/bin/sh
# The one launcher behind the scripts of this folder. They call it with what is theirs, then with the user's arguments:
#
#     launch.sh NAME BATCH_FLAG [MAIN_FLAG...] -- [OPTION...] [-- MAIN_FLAG...]
#
# NAME stands in messages, BATCH_FLAG is the flag of main.py that -b sets, MAIN_FLAGs reach main.py as they are: the
# script's own, without spaces in them, first, and the user's last, so that the user's win.

name=$(basename -- "$1")
batch_flag=$2
shift 2
preset=
while [ "$1" != -- ]; do
    preset="$preset $1"
    shift
done
shift

fail() {
    printf '%s: %s\n' "$name" "$*" >&2
    exit 2
}

usage() {
    cat <<END
usage: $name -g RANKS [-b BATCH] [-a] [-x] [-H HOST:RANKS,...] [-- FLAG_OF_MAIN...]

  -g, --gpu RANKS     number of processes: one per GPU, or on a machine without GPUs any number that shares its CPUs
  -b, --batch BATCH   main.py's $batch_flag, over all ranks
  -a, --amp           mixed precision
  -x, --xla           compile the dense part with XLA
  -H, --hosts HOSTS   several machines: a:8,b:8 starts 8 ranks on a and 8 on b
  -h, --help          this text

Runs main.py$preset with these options and the flags after --.
DRY_RUN=1 in the environment prints the command instead.
END
    exit 0
}

# Prints its arguments as words that a shell reads back unchanged.
quote() {
    separator=
    for word in "$@"; do
        case $word in
            '' | *[!A-Za-z0-9_./:=,+@%-]*) word=$(printf '%s\n' "$word" | sed "s/'/'\\\\''/g; 1s/^/'/; \$s/\$/'/") ;;
        esac
        printf '%s%s' "$separator" "$word"
        separator=' '
    done
    printf '\n'
}

ranks= batch= hosts= flags=
while [ "$#" -gt 0 ]; do
    case $1 in
        --*=*)
            option=${1%%=*} value=${1#*=}
            shift
            set -- "$option" "$value" "$@"
            ;;
    esac
    case $1 in
        -h | --help) usage ;;
        -a | --amp) flags="$flags --amp" && shift ;;
        -x | --xla) flags="$flags --xla" && shift ;;
        -g | --gpu | --gpus | -b | --batch | -H | --hosts)
            [ "$#" -ge 2 ] || fail "$1 needs a value; -h lists the options"
            case $1 in
                -g*|--gpu*) ranks=$2 ;;
                -b*|--batch) batch=$2 ;;
                *) hosts=$2 ;;
            esac
            shift 2
            ;;
        --) shift && break ;;
        *) fail "unknown option '$1'; -h lists the options, flags of main.py stand after --" ;;
    esac
done

[ -n "$ranks" ] || fail '-g RANKS is missing; -h lists the options'
case $ranks in
    *[!0-9]* | 0*) fail "-g $ranks: expected a number of ranks from 1 on" ;;
esac
case $batch in
    *[!0-9]* | 0*) fail "-b $batch: expected a number of rows from 1 on" ;;
esac

root=$(cd "$(dirname -- "$0")/.." && pwd) || exit
if [ -x "$root/.venv/bin/python" ]; then
    PATH=$root/.venv/bin:$PATH
    export PATH
fi

# $preset and $flags are lists of words without spaces.
# shellcheck disable=SC2086
set -- python "$root/main.py" $preset $flags ${batch:+"$batch_flag=$batch"} "$@"
# One process needs no launcher, so that it runs without Horovod too.
if [ "$ranks" -gt 1 ] || [ -n "$hosts" ]; then
    set -- horovodrun -np "$ranks" ${hosts:+-H "$hosts"} sh "$root/hvd_wrapper.sh" "$@"
fi

if [ "${DRY_RUN:-0}" = 1 ]; then
    quote "$@"
    exit 0
fi
if ! command -v "$1" >/dev/null 2>&1; then
    case $1 in
        horovodrun) fail "no horovodrun here: run 'make setup' (without HOROVOD=0), or take one rank (-g 1)" ;;
        *) fail "no python here: run 'make setup'" ;;
    esac
fi
exec "$@"
