"""One run put together: data, model, state and steps from a configuration, and the record that comes out."""

import dataclasses
import os
import signal
import sys
import uuid
from collections.abc import Callable

import numpy as np

from data import synthetic
from data.errors import InputError
from data.feature_spec import TEST, TRAIN, FeatureSpec
from data.input_pipeline import ParquetInput
from data.row_plan import shard_strata
from models.registry import build_model, embedding_dims
from trainer import benchmark, checkpoint, machine
from trainer.config import RunConfig
from trainer.distributed import SingleProcess, agree
from trainer.evaluate import Figures, Scoreboard, displays_are_sorted, evaluate
from trainer.optimizers import Ftrl, RMSprop, default_decay_step, warmup_then_steps_down
from trainer.records import Identity, Record, render_table
from trainer.reduction import Reduction, choose_method
from trainer.runtime import Surroundings
from trainer.state import TrainState, dense_weights, table_views
from trainer.steps import make_eval_step, make_train_step
from trainer.train import SignalledBatches, train, validation_figures
from trainer.writers import NullWriter, make_writer

_PROJECT_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# A restored run reads on where it stopped only if these are what they were.
_POSITION_SETTINGS = ("seed", "global_batch_size", "shuffle_buffer_rows")


class Experiment:
    """A configuration on a rank, ready to train, evaluate or be benchmarked. Made by `open`."""

    def __init__(
        self, config: RunConfig, comm: SingleProcess, surroundings: Surroundings, spec: FeatureSpec, environment: dict
    ):
        self._config = config
        self._comm = comm
        self._surroundings = surroundings
        self._spec = spec
        self._environment = environment

    @classmethod
    def open(cls, config: RunConfig, comm: SingleProcess, surroundings: Surroundings) -> "Experiment":
        """Says what is going to run, and finds the dataset, which is generated if that is asked for.

        Raises:
          InputError: on every rank, if any finds something wrong.
        """
        environment = machine.environment()
        if comm.rank == 0:
            print(first_line(config, comm, surroundings), flush=True)
            for warning in surroundings.warnings:
                print(f"main.py: warning: {warning}", file=sys.stderr, flush=True)
        agree(
            comm, lambda: shard_strata(config.training.global_batch_size, config.data.data_shards, comm.rank, comm.size)
        )
        return cls(config, comm, surroundings, agree(comm, lambda: open_spec(config)), environment)

    # The four things a run can be.

    def train(self) -> Record:
        """Trains, evaluating and saving on the way."""
        config, comm = self._config, self._comm
        train_rows, eval_rows = self._rows(TRAIN), self._rows(TEST)
        state = self._new_state(train_rows)
        first_step, run_id = self._restore_state(state, train_rows)
        comm.broadcast_variables(state.variables())
        eval_step = make_eval_step(state.model, xla=config.device.xla)
        stop = _StopSignal()
        with stop, self._train_stream(train_rows, first_step) as stream:
            epoch = stream.steps_per_epoch
            last_step = config.training.num_epochs * epoch
            if config.training.max_steps is not None:
                last_step = min(last_step, config.training.max_steps)
            with self._writer(max(0, last_step - first_step)) as writer:
                writer.write_parameters(config.flat())
                outcome = train(
                    comm=comm,
                    train_step=self._train_step(state, train_rows, stream.local_batch_size, epoch),
                    batches=SignalledBatches(stream),
                    global_batch_size=config.training.global_batch_size,
                    first_step=first_step,
                    last_step=last_step,
                    steps_per_epoch=epoch,
                    log_every_steps=config.training.log_every_steps,
                    checkpoint_every_steps=config.training.checkpoint_every_steps,
                    evaluate=lambda: self._evaluate(eval_rows, eval_step),
                    save=lambda step: self._save(state, step, run_id, train_rows),
                    stop_requested=stop.requested,
                    writer=writer,
                )
                samples_per_sec = (
                    outcome.steps * config.training.global_batch_size / outcome.seconds if outcome.steps else None
                )
                if outcome.figures is not None:
                    writer.write_final({"train_throughput": samples_per_sec, **validation_figures(outcome.figures)})
            notes = self._data_notes(stream)
        if outcome.stopped:
            notes.append(f"Stopped by a signal after step {outcome.step}; --use_checkpoint goes on from there.")
        elif outcome.steps == 0:
            notes.append(f"Nothing was left to train: the checkpoint is of step {first_step}.")
        return self._finish(
            Record(
                **self._facts("training", config.training.global_batch_size),
                samples_per_sec=samples_per_sec,
                warmup_steps=0,
                measured_steps=outcome.steps,
                requested_steps=max(0, last_step - first_step),
                loss=None if outcome.steps == 0 else outcome.loss,
                **_record_figures(outcome.figures),
                notes=(*notes, *_skipped_note(outcome.step - int(state.applied_steps.numpy()))),
            )
        )

    def evaluate(self) -> Record:
        """Evaluates once."""
        eval_rows = self._rows(TEST)
        model = self._model_to_evaluate()
        with self._writer(None) as writer:
            writer.write_parameters(self._config.flat())
            figures = self._evaluate(eval_rows, make_eval_step(model, xla=self._config.device.xla))
            writer.write_final(validation_figures(figures))
        return self._finish(
            Record(
                **self._facts("inference", self._config.training.eval_batch_size),
                distinct_rows=figures.rows,
                **_record_figures(figures),
                notes=self._weights_note(),
            )
        )

    def benchmark_training(self) -> Record:
        """Times training steps."""
        config, comm = self._config, self._comm
        train_rows = self._rows(TRAIN)
        state = self._new_state(train_rows)
        first_step, _ = self._restore_state(state, train_rows)
        comm.broadcast_variables(state.variables())
        with self._train_stream(train_rows, first_step) as stream, self._writer(config.mode.benchmark_steps) as writer:
            writer.write_parameters(config.flat())
            measured = benchmark.benchmark_training(
                comm=comm,
                train_step=self._train_step(state, train_rows, stream.local_batch_size, stream.steps_per_epoch),
                stream=stream,
                global_batch_size=config.training.global_batch_size,
                warmup_steps=config.mode.benchmark_warmup_steps,
                num_steps=config.mode.benchmark_steps,
                first_step=first_step,
                writer=writer,
            )
            writer.write_final({"train_throughput": measured.times.samples_per_sec, "loss": measured.loss})
            usable = stream.steps_per_epoch * config.training.global_batch_size
            notes = self._data_notes(stream)
        skipped = first_step + config.mode.benchmark_steps - int(state.applied_steps.numpy())
        return self._finish(
            self._benchmark_record("training", config.training.global_batch_size, measured, usable, notes, skipped)
        )

    def benchmark_inference(self) -> Record:
        """Times evaluation steps, metrics included."""
        config, comm = self._config, self._comm
        eval_rows = self._rows(TEST)
        model = self._model_to_evaluate()
        with_map = self._with_map()
        in_order = with_map and displays_are_sorted(eval_rows, comm)
        batch_size = config.training.eval_batch_size
        with (
            agree(
                comm,
                lambda: eval_rows.eval_stream(
                    global_batch_size=batch_size, rank=comm.rank, world_size=comm.size, repeat=True
                ),
            ) as stream,
            self._writer(config.mode.benchmark_steps) as writer,
        ):
            writer.write_parameters(config.flat())
            measured = benchmark.benchmark_inference(
                comm=comm,
                eval_step=make_eval_step(model, xla=config.device.xla),
                stream=stream,
                new_scoreboard=lambda: Scoreboard(with_map=with_map, sorted_by_display=in_order),
                warmup_steps=config.mode.benchmark_warmup_steps,
                num_steps=config.mode.benchmark_steps,
                writer=writer,
            )
            final = {"validation_throughput": measured.times.samples_per_sec}
            writer.write_final(final if measured.figures is None else final | validation_figures(measured.figures))
        notes = [*self._weights_note()]
        if measured.figures is None:
            notes.append("No accuracy figures: the steps did not cover the evaluation rows once.")
        return self._finish(
            self._benchmark_record("inference", batch_size, measured, eval_rows.num_rows, notes, skipped=0)
        )

    # Pieces.

    def _rows(self, source: str) -> ParquetInput:
        with_display = source == TEST and self._with_map()
        return agree(self._comm, lambda: ParquetInput(self._spec, source, with_display=with_display))

    def _with_map(self) -> bool:
        return self._spec.display is not None and not self._config.mode.disable_map_calculation

    def _model(self):
        model = self._config.model
        dims = agree(self._comm, lambda: embedding_dims(self._spec, _sizes_file(model.embedding_sizes_file)))
        return build_model(
            model.model,
            self._spec,
            dims=dims,
            hidden_units=model.deep_hidden_units,
            dropout=model.deep_dropout,
            combiner=model.combiner,
            seed=self._config.training.seed,
        )

    def _model_to_evaluate(self):
        """The model with the newest checkpoint's weights, or, without --use_checkpoint, its initial ones."""
        model = self._model()
        weights = dense_weights(model)
        if self._config.mode.use_checkpoint:

            def restore() -> None:
                manifest = _newest(self._config.output.model_dir)
                if manifest is None:
                    raise InputError(
                        f"{self._config.output.model_dir}: no checkpoint to evaluate: train first, or name another "
                        "--model_dir"
                    )
                arrays, _, _ = checkpoint.restore(
                    manifest,
                    tables=table_views(model),
                    dense={name: (v.shape, v.dtype.as_numpy_dtype) for name, v in weights.items()},
                    spec_digest=self._spec.digest(),
                    partial=True,
                )
                for name, array in arrays.items():
                    weights[name].assign(array)

            agree(self._comm, lambda: restore() if self._comm.rank == 0 else None)
        self._comm.broadcast_variables([*weights.values(), *(table.variable for table in model.tables)])
        return model

    def _new_state(self, train_rows: ParquetInput) -> TrainState:
        training = self._config.training
        wide_rate = training.linear_learning_rate * training.learning_rate_factor()
        return TrainState(
            self._model(),
            {"wide": Ftrl(wide_rate), "deep": RMSprop(rho=0.5)},
            dynamic_loss_scale=self._config.device.amp and self._config.device.amp_dtype == "float16",
        )

    def _train_step(self, state: TrainState, train_rows: ParquetInput, local_batch_size: int, steps_per_epoch: int):
        training, device, comm = self._config.training, self._config.device, self._comm
        factor = training.learning_rate_factor()
        num_steps = training.num_epochs * steps_per_epoch
        warmup = training.deep_warmup_steps
        if warmup is None:
            warmup = round(training.deep_warmup_epochs * steps_per_epoch)
        decay = training.deep_decay_step
        if decay is None:
            decay = default_decay_step(warmup, num_steps)
        # The same choice on every rank, whose batches can differ by a row.
        largest = -(-training.global_batch_size // comm.size) + 1
        methods = tuple(
            choose_method(
                ids_per_rank=largest * table.ids_per_sample(),
                table_rows=table.padding_row,
                dim=table.dim,
                world_size=comm.size,
                value_bytes=2 if device.fp16_compression else 4,
            )
            if device.table_reduction == "auto"
            else device.table_reduction
            for table in state.model.tables
        )
        wide_rate = state.optimizers["wide"].learning_rate
        return make_train_step(
            state,
            reduction=Reduction(comm, methods, half=device.fp16_compression),
            schedules={
                "wide": lambda step: np.float32(wide_rate),
                "deep": lambda step: warmup_then_steps_down(
                    training.deep_learning_rate * factor, warmup_steps=warmup, decay_step=decay, step=step
                ),
            },
            global_batch_size=training.global_batch_size,
            # Ranks drop different units; ranks of one run never share a seed with those of the next.
            seed=(training.seed * 65537 + comm.rank) % 2**31,
            xla=device.xla,
        )

    def _train_stream(self, rows: ParquetInput, first_step: int):
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

    def _evaluate(self, rows: ParquetInput, eval_step: Callable) -> Figures:
        return evaluate(
            rows,
            eval_step,
            self._comm,
            global_batch_size=self._config.training.eval_batch_size,
            with_map=self._with_map(),
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

    # Checkpoints. Rank 0 reads and writes them; the broadcast before the first step brings what it read to the others.

    def _restore_state(self, state: TrainState, train_rows: ParquetInput) -> tuple[int, str]:
        """The step to go on from and the name of the run."""
        found: list[tuple[int, str]] = [(0, uuid.uuid4().hex[:12])]

        def restore() -> None:
            if self._comm.rank != 0 or not self._config.mode.use_checkpoint:
                return
            directory = self._config.output.model_dir
            manifest = _newest(directory)
            if manifest is None:
                print(f"no checkpoint in {directory}: training begins at step 0", flush=True)
                return
            self._check_position(manifest, train_rows)
            variables = state.dense_variables()
            arrays, _, step = checkpoint.restore(
                manifest,
                tables=state.checkpoint_tables(),
                dense={name: (v.shape, v.dtype.as_numpy_dtype) for name, v in variables.items()},
                spec_digest=self._spec.digest(),
            )
            for name, array in arrays.items():
                variables[name].assign(array)
            print(f"restored {manifest.path}: training goes on at step {step}", flush=True)
            found[0] = (step, manifest.run_id)

        agree(self._comm, restore)
        return self._comm.allgather_object(found[0])[0]

    def _check_position(self, manifest: checkpoint.Manifest, train_rows: ParquetInput) -> None:
        saved = manifest.scalars
        now = {**{name: self._config.flat()[name] for name in _POSITION_SETTINGS}, "train_rows": train_rows.num_rows}
        for name, value in now.items():
            if saved.get(name) != value:
                remedy = "the same dataset" if name == "train_rows" else f"--{name}={saved.get(name)}"
                raise InputError(
                    f"{manifest.path}: the checkpoint was trained with {name} {saved.get(name)} and this run has "
                    f"{value}, so it cannot go on at the same rows: give {remedy}, or train without --use_checkpoint"
                )

    def _save(self, state: TrainState, step: int, run_id: str, train_rows: ParquetInput) -> None:
        def write() -> None:
            if self._comm.rank != 0:
                return
            settings = self._config.flat()
            checkpoint.save(
                self._config.output.model_dir,
                checkpoint.State(
                    step=step,
                    tables=state.checkpoint_tables(),
                    dense={name: variable.numpy() for name, variable in state.dense_variables().items()},
                    scalars={
                        **{name: settings[name] for name in _POSITION_SETTINGS},
                        "train_rows": train_rows.num_rows,
                        "world_size": self._comm.size,
                    },
                    spec_digest=self._spec.digest(),
                ),
                run_id=run_id,
            )

        agree(self._comm, write)

    # Records.

    def _facts(self, mode: str, global_batch_size: int) -> dict:
        teacher = "teacher" in self._spec.metadata
        return {
            "identity": Identity(model=self._config.model.model, mode=mode),
            "environment": self._environment,
            "config": self._config.flat(),
            "world_size": self._comm.size,
            "device": self._surroundings.device.description,
            "precision": self._config.device.precision,
            "global_batch_size": global_batch_size,
            "data_source": "generated" if teacher else "real",
        }

    def _benchmark_record(
        self,
        mode: str,
        global_batch_size: int,
        measured: benchmark.Measurement,
        usable_rows: int,
        notes: list[str],
        skipped: int,
    ) -> Record:
        times = measured.times
        return Record(
            **self._facts(mode, global_batch_size),
            samples_per_sec=times.samples_per_sec,
            step_ms=times.step_ms,
            rank_step_ms=times.rank_step_ms,
            input_wait_share=times.input_wait_share,
            warmup_steps=times.warmup_steps,
            measured_steps=times.measured_steps,
            requested_steps=self._config.mode.benchmark_steps,
            distinct_rows=min(measured.rows, usable_rows),
            passes=measured.rows / usable_rows,
            loss=measured.loss,
            **_record_figures(measured.figures),
            notes=(*notes, *_skipped_note(skipped)),
        )

    def _finish(self, record: Record) -> Record:
        """Adds what only the end knows, writes `result.json` and prints the table, on rank 0 alone."""
        peaks = tuple(self._comm.allgather_object(machine.peak_memory_bytes()))
        record = dataclasses.replace(record, peak_memory_bytes=peaks)

        def report() -> None:
            if self._comm.rank == 0:
                record.write_json(os.path.join(self._config.output.results_dir, "result.json"))
                print("\n" + render_table(record), end="", flush=True)

        agree(self._comm, report)
        return record

    def _weights_note(self) -> tuple[str, ...]:
        return () if self._config.mode.use_checkpoint else ("Untrained weights: --use_checkpoint was not given.",)

    def _data_notes(self, stream) -> list[str]:
        """What the reader of figures must know of the rows, over all ranks."""
        cut: dict[str, int] = {}
        for counts in self._comm.allgather_object(dict(stream.counts["ids_cut"])):
            for name, count in counts.items():
                cut[name] = cut.get(name, 0) + count
        notes = [
            f"{count:,} ids of '{name}' were cut: rows held more than its max_hotness of "
            f"{self._spec.features[name].max_hotness}."
            for name, count in cut.items()
            if count
        ]
        if stream.dropped_rows:
            notes.append(f"{stream.dropped_rows:,} training rows that fill no batch were left out of every epoch.")
        return notes


def first_line(config: RunConfig, comm: SingleProcess, surroundings: Surroundings) -> str:
    """Says in one line what runs on what, and what is not as it was asked for."""
    training, mode, device = config.training, config.mode, config.device
    doing = ("benchmark of " if mode.benchmark else "") + ("evaluation" if mode.evaluate else "training")
    batch = training.eval_batch_size if mode.evaluate else training.global_batch_size
    low, high = batch // comm.size, -(-batch // comm.size)
    factor = training.learning_rate_factor()
    precision = device.precision
    if device.amp and not surroundings.device.has_gpu:
        precision += " (emulated on a CPU: slower than float32)"
    parts = [
        f"{doing} of {config.model.model}" if not mode.benchmark else f"{doing}, {config.model.model}",
        surroundings.device.description,
        precision + (", XLA" if device.xla else ""),
        f"{comm.size} rank{'s' if comm.size > 1 else ''} ({comm.description})",
        f"batch {batch} global, {low if low == high else f'{low} to {high}'} per rank",
        f"learning rates: wide {training.linear_learning_rate * factor:g}, "
        f"deep {training.deep_learning_rate * factor:g}",
    ]
    if surroundings.fell_back:
        parts.append("fell back: " + ", ".join(surroundings.fell_back))
    if surroundings.without_effect:
        parts.append("without effect here: " + ", ".join(surroundings.without_effect))
    return " | ".join(parts)


def open_spec(config: RunConfig) -> FeatureSpec:
    """The specification of the dataset that a configuration names; generates the data if that is asked for.

    Raises:
      InputError: there is no such dataset; the message names the ways to get one.
    """
    data = config.data
    if data.dataset_type == "synthetic":
        return FeatureSpec.from_yaml(
            synthetic.cached_dataset(
                rows=data.synthetic_rows, seed=config.training.seed, cache_dir=data.synthetic_cache_dir
            )
        )
    path = os.path.join(data.dataset_path, data.fspec_file)
    if not os.path.exists(path):
        raise InputError(
            f"{path}: no dataset there. Three ways to get one: --dataset_path to a folder of parquet files with a "
            "feature specification; 'python -m data.synthetic --output DIR --rows N --seed S' to generate one; "
            "--dataset_type=synthetic to generate and cache one now"
        )
    return FeatureSpec.from_yaml(path)


class _StopSignal:
    """While entered, SIGTERM asks the training loop to stop instead of killing the process."""

    def __init__(self):
        self._requested = False
        self._before = None

    def requested(self) -> bool:
        return self._requested

    def __enter__(self) -> "_StopSignal":
        self._before = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, *_) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _request(self, *_) -> None:
        self._requested = True


def _newest(directory: str) -> checkpoint.Manifest | None:
    return checkpoint.latest(directory)


def _sizes_file(path: str) -> str:
    """The file as named, or as named from the project's folder, so that the default works from anywhere."""
    return path if os.path.exists(path) else os.path.join(_PROJECT_ROOT, path)


def _record_figures(figures: Figures | None) -> dict:
    if figures is None:
        return {}
    fields = dataclasses.asdict(figures)
    del fields["rows"]
    return fields


def _skipped_note(skipped: int) -> tuple[str, ...]:
    return (f"{skipped} steps were skipped because a gradient was not finite.",) if skipped else ()
