#!/bin/sh
# Training throughput: 1000 steps, measured after the first 500. -h lists the options.
exec sh "$(dirname -- "$0")/launch.sh" "$0" --global_batch_size \
    --benchmark --benchmark_warmup_steps=500 --benchmark_steps=1000 -- "$@"
