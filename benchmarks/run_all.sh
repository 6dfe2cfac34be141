#!/bin/sh
# Runs the default selection of the benchmark suite with the Python of `make setup` and prints the table:
#
#     cd benchmarks; ./run_all.sh [--quick] [--results_dir DIR] [OPTION...]
#
# Options are those of `python -m benchmarks.run`; results are in results/suite of the project unless DIR is given, which
# counts from where this is started.

root=$(cd "$(dirname -- "$0")/.." && pwd) || exit
python=$root/.venv/bin/python
if [ ! -x "$python" ]; then
    python=$(command -v python3) || { printf "run_all.sh: no python here: run 'make setup'\n" >&2; exit 2; }
fi

given=
for word in "$@"; do
    case $word in
        --results_dir | --results_dir=*) given=yes ;;
    esac
done
[ -n "$given" ] || set -- "--results_dir=$root/results/suite" "$@"

# The modules are found from here, and DIR from where the caller stands.
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
exec "$python" -m benchmarks.run "$@"
