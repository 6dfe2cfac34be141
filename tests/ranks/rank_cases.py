"""What ranks need to run cases: a registry, and training through main.run with everything that a step returned kept."""

import contextlib
import dataclasses
import pathlib
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

CASES: dict[str, tuple[Callable, tuple[int, ...]]] = {}

# Two epochs less a bit, so that training evaluates and saves in the middle; large rates, so that mistakes show.
STEPS = 40
_ANY_MODEL = (
    "--cpu",
    "--affinity=disabled",
    "--eval_batch_size=512",
    "--shuffle_buffer_rows=1500",
    "--log_every_steps=10",
    "--use_checkpoint",  # where there is none, it must be no hindrance
)
WIDE_DEEP = (
    *_ANY_MODEL,
    "--deep_hidden_units=16,8",
    "--deep_warmup_steps=5",
    "--deep_decay_step=30",
    "--deep_learning_rate=0.02",
    "--linear_learning_rate=0.1",
)
DLRM = (
    *_ANY_MODEL,
    "--model=dlrm",
    "--embedding_dim=8",
    "--bottom_mlp_dims=12,8",
    "--top_mlp_dims=16,1",
    "--warmup_steps=5",
    "--decay_start_step=15",
    "--decay_steps=40",
)


def case(*sizes: int):
    """Registers a function of a Context to be run in jobs of these numbers of ranks; it returns what tests look at."""

    def register(function: Callable) -> Callable:
        CASES[function.__name__] = (function, sizes)
        return function

    return register


@dataclasses.dataclass(frozen=True)
class Context:
    """What a case is given.

    Attributes:
      comm: the ranks.
      datasets: name -> folder of a dataset.
      folder: the case's own, the same on all ranks.
    """

    comm: Any
    datasets: dict[str, pathlib.Path]
    folder: pathlib.Path


def run_main(
    context: Context, *flags: str, model: tuple[str, ...] = WIDE_DEEP, comm=None, name: str = "run"
) -> dict[str, Any]:
    """The record of main.run with a model's flags and these; results and checkpoints go to the case's folder `name`."""
    import main
    from trainer import flags as command_line
    from trainer.runtime import Device, Surroundings

    results = context.folder / name
    arguments = [
        *model,
        f"--dataset_path={context.datasets['plain']}",
        f"--results_dir={results}",
        f"--model_dir={results / 'checkpoints'}",
        *flags,
    ]
    config = command_line.parse(arguments)
    return dataclasses.asdict(main.run(config, comm or context.comm, Surroundings(Device(False, "CPU"))))


def trained(
    context: Context,
    *flags: str,
    model: tuple[str, ...] = WIDE_DEEP,
    comm=None,
    steps: int = STEPS,
    name: str = "run",
    change_batch: Callable[[int, dict], dict] = lambda step, batch: batch,
) -> dict[str, Any]:
    """Trains as main.py does and returns, of this rank: per step what it returned, the state at the end, the record.

    Args:
      model: its flags.
      comm: other ranks than the context's.
      change_batch: (step, batch) -> the batch that the step is given.
    """
    from trainer import assembly

    states, outs, methods = [], [], []

    def keep_state(*args, **kwargs):
        states.append(make_state(*args, **kwargs))
        return states[-1]

    def keep_outs(*args, **kwargs):
        train_step = make_train_step(*args, **kwargs)
        methods.extend(kwargs["reduction"].methods)

        def step(batch, signals, number):
            before = weights_digest(states[-1])
            out = train_step(change_batch(int(number), batch), signals, number)
            values = {key: value.numpy() for key, value in out.items()}
            outs.append({**values, "moved": weights_digest(states[-1]) != before})
            return out

        return step

    make_state, make_train_step = assembly.TrainState, assembly.make_train_step
    with replaced(assembly, "TrainState", keep_state), replaced(assembly, "make_train_step", keep_outs):
        record = run_main(context, f"--max_steps={steps}", *flags, model=model, comm=comm, name=name)
    (state,) = states
    return {
        **{key: np.array([out[key] for out in outs]) for key in outs[0]},
        "weights": [variable.numpy() for _, variable in state.dense()]
        + [table.variable.numpy() for table in state.model.tables],
        "digest": state.digest(),
        "loss_scale": float(state.loss_scale.numpy()),
        "applied_steps": int(state.applied_steps.numpy()),
        "tables": [(table.padding_row, table.dim, table.ids_per_sample()) for table in state.model.tables],
        "methods": methods,
        "dense": [variable.numpy() for _, variable in state.dense()],
        "pieces": logical_tables(state),
        "placement": getattr(state.model.embeddings, "placement", None),
        "record": record,
    }


def logical_tables(state) -> dict[str, tuple[tuple[int, int, int, int], tuple[int, int], dict[str, np.ndarray]]]:
    """Table -> (rectangle, shape of the whole table, arrays) of what this rank would save, slots brought to date."""
    found = {}
    for table in state.model.tables:
        optimizer = state.optimizers[table.group]
        optimizer.bring_up_to_date(table.variable, int(state.applied_steps.numpy()))
    for view in state.checkpoint_tables():
        rectangle = (view.first_row, view.stop_row, view.first_column, view.stop_column)
        arrays = {array: view.read(array, view.first_row, view.stop_row) for array in view.arrays}
        found[view.name] = (rectangle, (view.rows, *view.arrays["weights"][0]), arrays)
    return found


def weights_digest(state) -> int:
    """A checksum of the weights and slots, without the loss scale and its counter."""
    kept = state.variables()
    with replaced(
        state, "variables", lambda: [v for v in kept if v is not state.loss_scale and v is not state.good_steps]
    ):
        return state.digest()


@contextlib.contextmanager
def replaced(owner, name: str, value) -> Iterator[None]:
    """The attribute is `value` while entered."""
    with unittest.mock.patch.object(owner, name, value):
        yield
