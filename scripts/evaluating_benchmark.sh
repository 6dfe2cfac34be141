#!/bin/sh
# Evaluation throughput: 1000 steps, measured after the first 500. -h lists the options.
exec sh "$(dirname -- "$0")/launch.sh" "$0" --eval_batch_size \
    --evaluate --benchmark --benchmark_warmup_steps=500 --benchmark_steps=1000 -- "$@"
