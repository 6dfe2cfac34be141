#!/bin/sh
# sh record_rank.sh FOLDER COMMAND...: runs the command of one rank and keeps its exit code in FOLDER/code-RANK.
# A launcher's SIGTERM is passed on to the command, as if this shell were not there.
folder=$1
shift
"$@" &
command=$!
trap 'kill -TERM $command 2>/dev/null' TERM
while :; do
    wait $command
    code=$?
    kill -0 $command 2>/dev/null || break
done
echo $code >"$folder/code-$HOROVOD_RANK"
exit $code
