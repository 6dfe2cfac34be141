#!/usr/bin/env bash
# Makes .venv with the pinned packages, NVTabular's among them, and a Horovod built for them; `make setup` calls it.
#
#     [HOROVOD=0] [PREPROC=0] [MPI=1] [GPU=1] [PYTHON=...] scripts/setup.sh [--keep | --print-wheel]
#
#   HOROVOD=0      no Horovod, no compiler needed: training in one process
#   PREPROC=0      no NVTabular and what it needs: no preprocessing of Outbrain's raw files
#   MPI=1          Horovod with its MPI controller beside Gloo
#   GPU=1          TensorFlow with CUDA, Horovod with NCCL; not tried on any machine
#   PYTHON         the Python 3.11 to use, a path or a name; without it one is looked for
#   --keep         leave a finished .venv with the options that it was made with, unless others are given
#   --print-wheel  print where the Horovod wheel for these options is kept, and do nothing
#
# .venv/.setup-complete, written last, says what .venv was made from. It makes the next run short, and without it .venv
# is taken for an interrupted set-up and made anew. Built wheels are kept in ${XDG_CACHE_HOME:-~/.cache}/recsys-harness.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root venv=$root/.venv stamp=$root/.venv/.setup-complete
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/recsys-harness
keep='' scratch='' job='' python='' cmake=''

say() { printf '[setup] %s\n' "$*"; }

fail() {
    printf '[setup] %s\n' "$*" >&2
    exit 1
}

# shellcheck source=scripts/horovod_wheel.sh
source "$root/scripts/horovod_wheel.sh"

cleanup() {
    if [ -n "$job" ]; then
        # All of them at once, lest a compiler write into the folder while it is removed.
        kill -KILL -- "-$job" 2>/dev/null || true
        wait "$job" 2>/dev/null || true
    fi
    if [ -n "$scratch" ]; then rm -rf "$scratch"; fi
}

# run_logged LOG COMMAND...: in a process group of its own, so that an interrupted set-up leaves no compiler behind.
run_logged() {
    local log=$1 status=0
    shift
    set -m
    "$@" >>"$log" 2>&1 </dev/null &
    job=$!
    set +m
    wait "$job" || status=$?
    job=''
    return "$status"
}

# Errors alone are printed: what pip warns about is not the user's to mend.
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input -qq "$@"; }

# kept NAME: the value that the stamp holds, nothing without a stamp.
kept() { if [ -f "$stamp" ]; then sed -n "s/^$1=//p" "$stamp"; fi; }

# Sets HOROVOD, PREPROC, MPI and GPU to 0 or 1: from the environment, else from a finished .venv (--keep), else by
# default.
read_options() {
    local name default
    for name in HOROVOD PREPROC MPI GPU; do
        default=
        if [ -n "$keep" ]; then default=$(kept "$name"); fi
        case $name in
            HOROVOD | PREPROC) default=${default:-1} ;;
        esac
        if [ -z "${!name-}" ]; then printf -v "$name" %s "${default:-0}"; fi
        case ${!name} in
            0 | 1) ;;
            *) fail "$name=${!name}: expected 0 or 1" ;;
        esac
    done
    if [ "$HOROVOD$MPI" = 01 ]; then fail 'MPI=1 is an option of Horovod: leave HOROVOD=0 away'; fi
}

# base_of PYTHON: the interpreter beneath a virtual environment, or itself; nothing unless it is a Python 3.11 that runs.
# .venv may stand first in PATH, and must not be made from itself. A second word says if it can make environments.
base_of() {
    "$1" -I -c 'import importlib.util, sys
if sys.version_info[:2] == (3, 11):
    print(sys._base_executable)
    print(all(map(importlib.util.find_spec, ("venv", "ensurepip"))))' 2>/dev/null </dev/null || true
}

# Sets python. A name in PATH may be a shim that fails when called, so each is tried.
find_python() {
    local candidate incomplete=''
    local -a candidates found
    if [ -n "${PYTHON-}" ]; then
        candidates=("$PYTHON")
    else
        mapfile -t candidates < <(type -aP python3.11 python3 python || true)
    fi
    for candidate in ${candidates[@]+"${candidates[@]}"}; do
        mapfile -t found < <(base_of "$candidate")
        case ${found[1]-} in
            True) python=${found[0]} && return ;;
            False) incomplete=${found[0]} ;;
        esac
    done
    if [ -n "$incomplete" ]; then
        fail "$incomplete cannot make virtual environments: install python3.11-venv (apt install python3.11-venv)"
    fi
    if [ -n "${PYTHON-}" ]; then fail "PYTHON=$PYTHON is not a Python 3.11 that runs: install or name one"; fi
    fail 'Python 3.11 is missing: install it (apt install python3.11 python3.11-venv, or pyenv install 3.11),' \
        'or name it with PYTHON=/path/to/python3.11'
}

# What .venv is made from; the stamp holds these lines and the interpreter's.
describe() {
    printf '%s\n' "HOROVOD=$HOROVOD" "PREPROC=$PREPROC" "MPI=$MPI" "GPU=$GPU" "folder=$venv"
    printf 'inputs=%s\n' "$(cd "$root" &&
        cat requirements.txt requirements-dev.txt requirements-preproc.txt scripts/setup.sh scripts/horovod_wheel.sh \
            models/custom_ops.py models/ops/*.cc models/ops/*.h | sha256sum)"
}

has_horovod() { [ -d "$venv/lib/python3.11/site-packages/horovod-$(wheel_version).dist-info" ]; }

# True if .venv is finished, made from the same things, and still runs.
up_to_date() {
    [ -f "$stamp" ] && [ "$(grep -v '^python=' "$stamp")" = "$(describe)" ] && "$venv/bin/python" -I -c '' 2>/dev/null &&
        { [ "$HOROVOD" = 0 ] || has_horovod; } &&
        { [ -z "${PYTHON-}" ] || [ "$(base_of "$PYTHON" | head -n 1)" = "$(kept python)" ]; }
}

# True if pip can bring .venv up to date. If not, it is made anew: it was interrupted, moved here from another folder,
# made by another Python, or holds the other TensorFlow package (the two overwrite each other's files).
reusable() {
    [ "$(kept folder)" = "$venv" ] && [ "$(kept python)" = "$python" ] && [ "$(kept GPU)" = "$GPU" ] &&
        pip --version >/dev/null 2>&1
}

install_packages() {
    if [ "$GPU" = 1 ]; then
        # The CUDA libraries carry no pins here: TensorFlow's own metadata says which ones it takes.
        sed 's/^tensorflow-cpu==/tensorflow[and-cuda]==/' "$root/requirements.txt" >"$scratch/requirements.txt"
        pip install -r "$scratch/requirements.txt" -r "$root/requirements-dev.txt"
    else
        pip install --no-deps -r "$root/requirements.txt" -r "$root/requirements-dev.txt"
    fi || fail 'pip could not install the pinned packages; its own message stands above'
    if [ "$PREPROC" = 1 ]; then
        # Some have no wheels: they are built with the setuptools just installed, not with whatever is newest today.
        pip install --no-deps --no-build-isolation -r "$root/requirements-preproc.txt" ||
            fail 'pip could not install the packages of preprocessing; its own message stands above;' \
                'PREPROC=0 does without them'
    fi
}

# Our own kernels for embedding tables. TensorFlow's do where there is no compiler, and main.py says so.
build_kernels() {
    local log=$scratch/kernels.log
    say 'building the kernels, half a minute'
    if ! run_logged "$log" env -C "$root" "$venv/bin/python" -m models.custom_ops; then
        say "going on with TensorFlow's kernels for embedding tables: $(tail -n 1 "$log")"
    fi
}

set_up() {
    local made_anew='' description disagreements
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/recsys-harness.XXXXXX")
    export TMPDIR=$scratch
    description=$(describe)
    if ! reusable; then made_anew=1; fi
    rm -f "$stamp"
    if [ -n "$made_anew" ]; then
        say "making .venv with $python"
        "$python" -m venv --clear "$venv" || fail "$python could not make $venv; its own message stands above"
    fi
    say 'installing the pinned packages, 1 to 3 minutes when they have to be downloaded'
    if [ "$PREPROC" = 0 ] && [ -z "$made_anew" ]; then
        pip uninstall --yes -r "$root/requirements-preproc.txt" 2>/dev/null || true
    fi
    install_packages
    if [ "$HOROVOD" = 0 ]; then
        if [ -z "$made_anew" ]; then pip uninstall --yes horovod 2>/dev/null || true; fi
    elif ! has_horovod || ! horovod_loads; then
        install_horovod
    fi
    build_kernels
    disagreements=$("$venv/bin/python" -m pip check 2>&1) ||
        fail "the pinned packages do not agree: ${disagreements//$'\n'/; }"
    { printf '%s\n' "$description" && printf 'python=%s\n' "$python"; } >"$stamp.part"
    mv "$stamp.part" "$stamp"
}

nvtabular_version() { sed -n 's/^nvtabular==\([^ ]*\).*/\1/p' "$root/requirements-preproc.txt"; }

summary() {
    printf 'TensorFlow %s' "$(tensorflow_version)"
    if [ "$HOROVOD" = 1 ]; then printf ', Horovod %s' "$(wheel_version)"; fi
    if [ "$PREPROC" = 1 ]; then printf ', NVTabular %s' "$(nvtabular_version)"; fi
    if [ "$HOROVOD" = 0 ]; then printf '; HOROVOD=0: no Horovod, training in one process'; fi
    if [ "$PREPROC" = 0 ]; then printf '; PREPROC=0: no NVTabular, no preprocessing of raw files'; fi
}

main() {
    case ${1-} in
        '' | --print-wheel) ;;
        --keep) keep=1 ;;
        *) fail "unknown option '$1': expected --keep or --print-wheel" ;;
    esac
    unset PYTHONPATH PYTHONHOME
    read_options
    if [ "${1-}" = --print-wheel ]; then
        wheel_path
        return
    fi
    # Two set-ups of one checkout wait for each other.
    if type -P flock >/dev/null; then
        exec 9<"$root"
        flock 9
    fi
    if up_to_date; then
        if [ -z "$keep" ] || [ "$HOROVOD$PREPROC" != 11 ]; then say ".venv is up to date: $(summary)"; fi
        return
    fi
    find_python
    if [ "$HOROVOD" = 1 ] && [ ! -f "$(wheel_path)" ]; then check_build_tools; fi
    if [ "$GPU" = 1 ]; then say 'GPU=1 was not tried on any machine: please report how it went'; fi
    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    set_up
    say "done in $SECONDS s: $(summary)"
}

main "$@"
