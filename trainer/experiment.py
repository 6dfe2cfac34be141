"""One run put together: data, model, state and steps from a configuration, and the record that comes out."""

import os
import sys
import time
from collections.abc import Callable, Mapping

from data.errors import InputError
from data.feature_spec import TEST, TRAIN, FeatureSpec
from data.input_pipeline import BatchStream, ParquetInput
from data.row_plan import shard_strata
from models import custom_ops
from models.click_model import ClickModel
from trainer import benchmark, machine, nvml
from trainer.agreement import agree
from trainer.announcement import first_line
from trainer.assembly import (
    describe_placement,
    make_model,
    make_state,
    make_step,
    place_tables,
    predicted_alltoall_bytes,
)
from trainer.config import RunConfig
from trainer.dataset import open_spec
from trainer.distributed import SingleProcess
from trainer.evaluate import Figures, Scoreboard, displays_are_sorted, evaluate, sum_counts
from trainer.loss_watch import describe_batch
from trainer.placed_tables import Placement
from trainer.record_fields import (
    benchmark_fields,
    evaluation_fields,
    finish,
    run_fields,
    skipped_note,
    training_fields,
    training_notes,
)
from trainer.records import Record
from trainer.resume import Checkpoints, data_position
from trainer.runtime import Surroundings
from trainer.settings_in_force import settings_in_force, weights_digest
from trainer.state import dense_weights
from trainer.steps import make_eval_step
from trainer.train import SignalledBatches, StopSignal, check_evaluations, train, validation_figures
from trainer.writers import NullWriter, make_writer


class Experiment:
    """A configuration on a rank, ready to train, evaluate or be benchmarked. Made by `open`."""

    def __init__(
        self,
        config: RunConfig,
        comm: SingleProcess,
        surroundings: Surroundings,
        spec: FeatureSpec,
        environment: dict,
        placement: Placement,
    ):
        self._config = config
        self._comm = comm
        self._surroundings = surroundings
        self._spec = spec
        self._environment = environment
        self._placement = placement

    @classmethod
    def open(cls, config: RunConfig, comm: SingleProcess, surroundings: Surroundings) -> "Experiment":
        """Says what is going to run, and finds the dataset, which is generated if that is asked for.

        Raises:
          InputError: on every rank, if any finds something wrong.
        """
        environment = machine.environment() | {"embedding_kernels": custom_ops.in_use()}
        if comm.rank == 0:
            print(first_line(config, comm, surroundings), flush=True)
        who = f"rank {comm.rank}: " if comm.size > 1 else ""
        for warning in surroundings.warnings:  # each rank has its own
            print(f"main.py: warning: {who}{warning}", file=sys.stderr, flush=True)
        agree(
            comm, lambda: shard_strata(config.training.global_batch_size, config.data.data_shards, comm.rank, comm.size)
        )
        spec = agree(comm, lambda: open_spec(config))
        has_gpu = surroundings.device.has_gpu
        memory = nvml.free_memory_bytes(os.environ) if has_gpu else machine.read_available_memory_bytes()
        placement = place_tables(config, spec, comm, memory, own_device=has_gpu)
        if comm.rank == 0 and not placement.is_replicated:
            print(describe_placement(config, comm, spec, placement), flush=True)
        return cls(config, comm, surroundings, spec, environment, placement)

    # The four things a run can be.

    def train(self) -> Record:
        """Trains, evaluating and saving on the way."""
        config, comm = self._config, self._comm
        self._check_target()
        train_rows, eval_rows = self._rows(TRAIN), self._rows(TEST)
        state = make_state(config, self._model(), comm.rank)
        checkpoints, position = self._checkpoints(), data_position(config, train_rows)
        checkpoints.check_writable(by_every_rank=state.model.embeddings.is_sharded)
        first_step = checkpoints.resume(state, position) if config.mode.use_checkpoint else 0
        comm.broadcast_variables(state.replicated_variables())
        eval_step, untrained = make_eval_step(state.model, xla=config.device.xla), weights_digest(state.model)
        stop = StopSignal()
        with stop, self._train_stream(train_rows, first_step) as stream:
            epoch = stream.steps_per_epoch
            check_evaluations(config.training.evals_per_epoch, epoch)
            last_step = config.training.num_epochs * epoch
            if config.training.max_steps is not None:
                last_step = min(last_step, config.training.max_steps)
            train_step = make_step(config, comm, state, epoch)
            with self._writer(max(0, last_step - first_step)) as writer:
                writer.write_parameters(config.flat())
                outcome = train(
                    comm=comm,
                    train_step=train_step,
                    batches=SignalledBatches(stream),
                    global_batch_size=config.training.global_batch_size,
                    first_step=first_step,
                    last_step=last_step,
                    steps_per_epoch=epoch,
                    log_every_steps=config.training.log_every_steps,
                    checkpoint_every_steps=config.training.checkpoint_every_steps,
                    evaluate=lambda: self._evaluate(eval_rows, state.model, eval_step),
                    save=lambda step: checkpoints.save(state, step, position),
                    stop_requested=stop.requested,
                    learning_rate_flags=config.learning_rate_flags,
                    describe_batch=lambda batch: describe_batch(batch, self._spec.numerical),
                    writer=writer,
                    evals_per_epoch=config.training.evals_per_epoch,
                    target_map12=config.training.target_map12,
                )
                fields = training_fields(
                    outcome, config, first_step=first_step, last_step=last_step, steps_per_epoch=epoch
                )
                if outcome.figures is not None:
                    pace = fields["samples_per_sec"]
                    throughput = {} if pace is None else {"train_throughput": pace}
                    writer.write_final(throughput | validation_figures(outcome.figures))
            notes = self._training_notes(stream)
        if outcome.figures is not None:
            notes += self._cut_notes(outcome.figures.ids_cut, "evaluation")
        notes += training_notes(outcome, target_map12=config.training.target_map12, first_step=first_step)
        return self._finish(
            **fields,
            **self._figures(outcome.figures),
            **self._in_force(state.model, train_step=train_step, eval_step=eval_step),
            trained=weights_digest(state.model) != untrained,
            notes=(*notes, *skipped_note(outcome.step - int(state.applied_steps.numpy()))),
        )

    def evaluate(self) -> Record:
        """Evaluates once."""
        eval_rows = self._rows(TEST)
        model = self._model_to_evaluate()
        eval_step = make_eval_step(model, xla=self._config.device.xla)
        with self._writer(None) as writer:
            writer.write_parameters(self._config.flat())
            began = time.perf_counter()
            figures = self._evaluate(eval_rows, model, eval_step)
            seconds = time.perf_counter() - began
            writer.write_final(validation_figures(figures))
        return self._finish(
            distinct_rows=figures.rows,
            eval_samples_per_sec=figures.rows / seconds,
            **self._figures(figures),
            **self._in_force(model, eval_step=eval_step),
            notes=(*self._weights_note(), *self._cut_notes(figures.ids_cut, "evaluation")),
        )

    def benchmark_training(self) -> Record:
        """Times training steps."""
        config, comm = self._config, self._comm
        train_rows = self._rows(TRAIN)
        state = make_state(config, self._model(), comm.rank)
        resumed = config.mode.use_checkpoint
        first_step = self._checkpoints().resume(state, data_position(config, train_rows)) if resumed else 0
        comm.broadcast_variables(state.replicated_variables())
        untrained = weights_digest(state.model)
        with self._train_stream(train_rows, first_step) as stream, self._writer(self._known_steps()) as writer:
            writer.write_parameters(config.flat())
            train_step = make_step(config, comm, state, stream.steps_per_epoch)
            measured = benchmark.benchmark_training(
                comm=comm,
                train_step=train_step,
                stream=stream,
                global_batch_size=config.training.global_batch_size,
                warmup_steps=config.mode.benchmark_warmup_steps,
                num_steps=config.mode.benchmark_steps,
                seconds=config.mode.benchmark_seconds,
                first_step=first_step,
                writer=writer,
            )
            writer.write_final({"train_throughput": measured.times.samples_per_sec, "loss": measured.loss})
            usable = stream.steps_per_epoch * config.training.global_batch_size
            notes = self._training_notes(stream)
        steps = measured.times.warmup_steps + measured.times.measured_steps
        skipped = first_step + steps - int(state.applied_steps.numpy())
        return self._finish(
            **self._benchmark_fields(measured, usable),
            **self._in_force(state.model, train_step=train_step),
            trained=weights_digest(state.model) != untrained,
            notes=(*notes, *skipped_note(skipped)),
        )

    def benchmark_inference(self) -> Record:
        """Times evaluation steps, metrics included."""
        config, comm = self._config, self._comm
        eval_rows = self._rows(TEST)
        model = self._model_to_evaluate()
        with_map = self._with_map()
        in_order = with_map and displays_are_sorted(eval_rows, comm)
        eval_step = make_eval_step(model, xla=config.device.xla)
        with (
            agree(
                comm,
                lambda: eval_rows.eval_stream(
                    global_batch_size=config.training.eval_batch_size,
                    rank=comm.rank,
                    world_size=comm.size,
                    repeat=True,
                ),
            ) as stream,
            self._writer(self._known_steps()) as writer,
        ):
            writer.write_parameters(config.flat())
            measured = benchmark.benchmark_inference(
                comm=comm,
                eval_step=eval_step,
                stream=stream,
                new_scoreboard=lambda: Scoreboard(with_map=with_map, sorted_by_display=in_order),
                warmup_steps=config.mode.benchmark_warmup_steps,
                num_steps=config.mode.benchmark_steps,
                seconds=config.mode.benchmark_seconds,
                writer=writer,
                together=model.embeddings.is_sharded,
            )
            final = {"validation_throughput": measured.times.samples_per_sec}
            writer.write_final(final if measured.figures is None else final | validation_figures(measured.figures))
            cut = sum_counts(stream.counts["ids_cut"], comm)
        notes = [*self._weights_note(), *self._cut_notes(cut, "evaluation")]
        if measured.figures is None:
            notes.append("No accuracy figures: the steps did not cover the evaluation rows once.")
        return self._finish(
            **self._benchmark_fields(measured, eval_rows.num_rows),
            **self._in_force(model, eval_step=eval_step),
            notes=tuple(notes),
        )

    # Pieces.

    def _known_steps(self) -> int | None:
        """Steps of a benchmark; None where ranks are going to agree on them."""
        mode = self._config.mode
        return mode.benchmark_steps if mode.benchmark_seconds is None else None

    def _rows(self, source: str) -> ParquetInput:
        with_display = source == TEST and self._with_map()
        return agree(self._comm, lambda: ParquetInput(self._spec, source, with_display=with_display))

    def _with_map(self) -> bool:
        return self._spec.display is not None and not self._config.mode.disable_map_calculation

    def _model(self) -> ClickModel:
        return agree(self._comm, lambda: make_model(self._config, self._spec, self._comm, self._placement))

    def _model_to_evaluate(self) -> ClickModel:
        """The model with the newest checkpoint's weights, or, without --use_checkpoint, its initial ones."""
        model = self._model()
        if self._config.mode.use_checkpoint:
            self._checkpoints().restore_weights(model)
        replicated = [table.variable for table in model.embeddings.replicated]
        self._comm.broadcast_variables([*dense_weights(model).values(), *replicated])
        return model

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(
            self._config.output.model_dir,
            self._comm,
            spec_digest=self._spec.digest(),
            precision=self._config.device.precision,
        )

    def _train_stream(self, rows: ParquetInput, first_step: int) -> BatchStream:
        config, comm = self._config, self._comm
        return agree(
            comm,
            lambda: rows.train_stream(
                global_batch_size=config.training.global_batch_size,
                rank=comm.rank,
                world_size=comm.size,
                seed=config.training.seed,
                start_step=first_step,
                data_shards=config.data.data_shards,
                shuffle_buffer_rows=config.data.shuffle_buffer_rows,
            ),
        )

    def _evaluate(self, rows: ParquetInput, model: ClickModel, eval_step: Callable) -> Figures:
        return evaluate(
            rows,
            eval_step,
            self._comm,
            global_batch_size=self._config.training.eval_batch_size,
            with_map=self._with_map(),
            together=model.embeddings.is_sharded,
        )

    def _writer(self, total_steps: int | None) -> NullWriter:
        output = self._config.output
        return agree(
            self._comm,
            lambda: make_writer(
                self._comm.rank == 0,
                log_path=os.path.join(output.results_dir, output.log_filename),
                stream=sys.stdout,
                terminal=self._surroundings.terminal,
                total_steps=total_steps,
            ),
        )

    def _check_target(self) -> None:
        """Refuses a target where there is no MAP@12. Every rank comes to the same verdict."""
        target = self._config.training.target_map12
        if target is not None and not self._with_map():
            raise InputError(
                f"--target_map12={target:g} needs displays, and {self._spec.path} has none: leave it "
                "out, or give a dataset whose feature specification names a display column"
            )

    # Records.

    def _figures(self, figures: Figures | None) -> dict:
        return evaluation_fields(figures, self._spec.metadata.get("teacher"))

    def _benchmark_fields(self, measured: benchmark.Measurement, usable_rows: int) -> dict:
        predicted = predicted_alltoall_bytes(self._config, self._comm, self._spec, self._placement)
        return {
            **benchmark_fields(measured, self._config.mode, usable_rows=usable_rows),
            "predicted_alltoall_bytes": predicted,
            **self._figures(measured.figures),
        }

    def _in_force(self, model: ClickModel, **steps: Callable) -> dict:
        return {"settings_in_force": settings_in_force(model, steps, self._comm)}

    def _finish(self, **fields) -> Record:
        config, comm = self._config, self._comm
        ran = run_fields(config, comm, self._surroundings, self._spec, self._environment)
        return finish(Record(**ran, **fields), config, comm)

    def _weights_note(self) -> tuple[str, ...]:
        return () if self._config.mode.use_checkpoint else ("Untrained weights: --use_checkpoint was not given.",)

    def _training_notes(self, stream: BatchStream) -> list[str]:
        """What the reader of figures must know of the training rows, over all ranks."""
        notes = self._cut_notes(sum_counts(stream.counts["ids_cut"], self._comm), "training")
        if stream.dropped_rows:
            notes.append(f"{stream.dropped_rows:,} training rows that fill no batch were left out of every epoch.")
        return notes

    def _cut_notes(self, ids_cut: Mapping[str, int], source: str) -> list[str]:
        """Rows that were read ahead and not used count too."""
        return [
            f"{count:,} ids of '{name}' were cut while {source} rows were read: a row held more than its max_hotness "
            f"of {self._spec.features[name].max_hotness}."
            for name, count in ids_cut.items()
            if count
        ]
