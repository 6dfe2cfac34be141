"""A record put together: what ran, what training and evaluation found, and how it leaves the program."""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

from data.feature_spec import FeatureSpec
from trainer import gpu_settings, machine
from trainer.agreement import agree
from trainer.benchmark import Measurement
from trainer.config import ModeConfig, RunConfig
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures
from trainer.records import Identity, Record, render_table
from trainer.runtime import Surroundings
from trainer.train import BY_SIGNAL, BY_TARGET, Outcome


def run_fields(
    config: RunConfig,
    comm: SingleProcess,
    surroundings: Surroundings,
    spec: FeatureSpec,
    environment: Mapping[str, Any],
    *,
    implementation: str = "optimized",
) -> dict[str, Any]:
    """Fields of what ran on what.

    Args:
      config: what was asked for.
      comm: the ranks.
      surroundings: the device.
      spec: of the dataset.
      environment: see trainer.machine.
      implementation: whose models these are, "optimized" or "ootb".
    """
    evaluates, device = config.mode.evaluate, surroundings.device
    return {
        "identity": Identity(
            model=config.model.model,
            mode="inference" if evaluates else "training",
            config=config.mode.benchmark_name,
            implementation=implementation,
        ),
        "environment": {
            **environment,
            "gpu_settings": None if device.gpu is None else dataclasses.asdict(device.gpu),
            "tuning": gpu_settings.tuning(os.environ),
        },
        "config": config.flat(),
        "world_size": comm.size,
        "device": device.description,
        "precision": device.describe_precision(config.device.precision),
        "global_batch_size": config.training.eval_batch_size if evaluates else config.training.global_batch_size,
        "data_source": "generated" if "teacher" in spec.metadata else "real",
    }


def benchmark_fields(measured: Measurement, mode: ModeConfig, *, usable_rows: int) -> dict[str, Any]:
    """Fields of what a benchmark measured, accuracy excepted.

    Args:
      measured: what it measured.
      mode: how many steps were asked for.
      usable_rows: rows of one pass over the data.
    """
    times = measured.times
    # Ranks that agreed on how many take so many seconds asked for just those.
    agreed = times.warmup_steps + times.measured_steps
    return {
        "samples_per_sec": times.samples_per_sec,
        "step_ms": times.step_ms,
        "step_times_ms": times.step_times_ms,
        "measured_seconds": measured.seconds,
        "rank_step_ms": times.rank_step_ms,
        "input_wait_share": times.input_wait_share,
        "warmup_steps": times.warmup_steps,
        "measured_steps": times.measured_steps,
        "requested_steps": mode.benchmark_steps if mode.benchmark_seconds is None else agreed,
        "distinct_rows": min(measured.rows, usable_rows),
        "passes": measured.rows / usable_rows,
        "loss": measured.loss,
        "wire_bytes": measured.wire_bytes,
        "alltoall_bytes": measured.alltoall_bytes,
    }


def training_fields(
    outcome: Outcome, config: RunConfig, *, first_step: int, last_step: int, steps_per_epoch: int
) -> dict[str, Any]:
    """Fields of how training went, the last evaluation's figures excepted.

    Args:
      outcome: of trainer.train.
      config: batch size and target.
      first_step, last_step: steps done before, and those that were asked for.
      steps_per_epoch: steps of one pass.
    """
    target, batch_size = config.training.target_map12, config.training.global_batch_size
    evaluations = outcome.evaluations
    reached = next((e for e in evaluations if target is not None and (e.figures.map_at_12 or 0.0) >= target), None)
    # Steps that no signal and no target left out.
    requested = last_step if outcome.ended_by != BY_TARGET else outcome.step
    return {
        "samples_per_sec": outcome.timed_steps * batch_size / outcome.seconds if outcome.steps else None,
        "warmup_steps": outcome.steps - outcome.timed_steps,
        "measured_steps": outcome.timed_steps,
        "requested_steps": max(0, requested - first_step),
        "loss": outcome.loss if outcome.steps else None,
        "ended_by": outcome.ended_by,
        "evaluations": tuple(
            {
                "step": e.step,
                "epoch": e.step / steps_per_epoch,
                "train_seconds": e.train_seconds,
                "map_at_12": e.figures.map_at_12,
                "auc": e.figures.auc,
                "log_loss": e.figures.log_loss,
            }
            for e in evaluations
        ),
        "train_seconds": outcome.train_seconds,
        "eval_samples_per_sec": evaluations[-1].samples_per_sec if evaluations else None,
        "target_map12": target,
        "steps_to_target": reached.step if reached else None,
        # The time of steps before a restored checkpoint is not known.
        "seconds_to_target": reached.train_seconds if reached and first_step == 0 else None,
    }


def training_notes(outcome: Outcome, *, target_map12: float | None, first_step: int) -> list[str]:
    """What the reader of figures must know of how training ended."""
    notes = []
    if outcome.ended_by == BY_SIGNAL:
        notes.append(f"Stopped by a signal after step {outcome.step}; --use_checkpoint goes on from there.")
        if outcome.figures is not None:
            notes.append("Accuracy is that of the last evaluation before the signal.")
    elif outcome.steps == 0:
        notes.append(f"Nothing was left to train: the checkpoint is of step {first_step}.")
    if outcome.ended_by == BY_TARGET:
        notes.append(f"The target MAP@12 of {target_map12:g} was reached after step {outcome.step}.")
    elif target_map12 is not None:
        notes.append(f"The target MAP@12 of {target_map12:g} was not reached in {outcome.step} steps.")
    return notes


def evaluation_fields(figures: Figures | None, teacher: Mapping[str, Any] | None) -> dict[str, Any]:
    """Fields of a record: the figures and, of generated data, the shares of what its teacher reaches above chance.

    Args:
      figures: of an evaluation; there are no fields without.
      teacher: `metadata.teacher` of the dataset; None of real data.
    """
    if figures is None:
        return {}
    fields = dataclasses.asdict(figures)
    del fields["rows"], fields["ids_cut"]
    if teacher is not None:
        if teacher.get("auc") is not None:
            fields["auc_margin_share"] = _share(figures.auc, 0.5, teacher["auc"])
        if figures.map_at_12 is not None:
            fields["map_margin_share"] = _share(figures.map_at_12, teacher["chance_map_at_12"], teacher["map_at_12"])
    return fields


def skipped_note(skipped: int) -> tuple[str, ...]:
    """A note of steps that changed nothing, if there were any."""
    if not skipped:
        return ()
    return (f"{skipped} {'step was' if skipped == 1 else 'steps were'} skipped: a gradient was not finite.",)


def finish(record: Record, config: RunConfig, comm: SingleProcess) -> Record:
    """Adds what only the end knows, writes `result.json` and prints the table, on rank 0 alone; all ranks call it.

    Raises:
      InputError: on every rank, if the record cannot be written.
    """
    peaks = tuple(comm.allgather_object(machine.peak_memory_bytes()))
    record = dataclasses.replace(record, peak_memory_bytes=peaks)

    def report() -> None:
        if comm.rank == 0:
            record.write_json(os.path.join(config.output.results_dir, "result.json"))
            print("\n" + render_table(record), end="", flush=True)

    agree(comm, report)
    return record


def _share(reached: float, chance: float, best: float) -> float:
    """How far from chance to the best; NaN where the best is no better than chance."""
    return (reached - chance) / (best - chance) if best > chance else math.nan
