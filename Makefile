# Set-up, benchmark and tests. `make` alone lists the targets.

.DEFAULT_GOAL := help
.PHONY: help setup ready benchmark test lint format clean
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# What `make benchmark` runs: make benchmark RANKS=1 STEPS=50. The tables and layers are always the full ones.
RANKS ?= 2
BATCH ?= 4096
WARMUP_STEPS ?= 5
STEPS ?= 25
ROWS ?= 200000
RESULTS ?= results/benchmark

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## .venv with pinned packages, Horovod, NVTabular; HOROVOD=0 or PREPROC=0 without; MPI=1, GPU=1 (README)
	@scripts/setup.sh

# What the other targets stand on: a finished .venv keeps the options that it was made with, unless others are given.
ready:
	@scripts/setup.sh --keep

benchmark: ready  ## throughput of the main job on generated data; RANKS, BATCH, STEPS, WARMUP_STEPS, ROWS, RESULTS
	@ranks=$(RANKS); [ -x .venv/bin/horovodrun ] || ranks=1; \
	sh scripts/launch.sh 'make benchmark' --global_batch_size --dataset_type=synthetic --synthetic_rows=$(ROWS) \
	    --benchmark --benchmark_warmup_steps=$(WARMUP_STEPS) --benchmark_steps=$(STEPS) -- \
	    -g "$$ranks" -b "$(BATCH)" -- --results_dir="$(RESULTS)"

test: lint  ## lint and all tests
	pytest

lint: ready  ## ruff's checks and its format, changing nothing
	ruff check .
	ruff format --check .

format: ready  ## the tree in ruff's format, with what ruff can mend by itself
	ruff check --fix .
	ruff format .

clean:  ## removes .venv and the tools' caches; results, checkpoints and kept Horovod wheels stay
	rm -rf .venv .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
