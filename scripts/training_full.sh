#!/bin/sh
# The whole training, evaluated after every epoch. -h lists the options.
exec sh "$(dirname -- "$0")/launch.sh" "$0" --global_batch_size -- "$@"
