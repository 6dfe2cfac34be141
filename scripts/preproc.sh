#!/bin/sh
# Outbrain's raw files to training parquet: bash scripts/preproc.sh --data_path ORIG --metadata_path OUT
# All flags go to `python -m data.outbrain.preprocess`; --help lists them. Relative paths start from where you are.
root=$(cd "$(dirname -- "$0")/.." && pwd) || exit
if [ -x "$root/.venv/bin/python" ]; then
    PATH=$root/.venv/bin:$PATH
fi
# The checkout's modules, from any folder, and not the modules of that folder (a `data` of the caller, say).
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
PYTHONSAFEPATH=1
export PATH PYTHONPATH PYTHONSAFEPATH
if ! command -v python >/dev/null 2>&1; then
    printf "preproc.sh: no python here: run 'make setup'\n" >&2
    exit 2
fi
exec python -m data.outbrain.preprocess "$@"
