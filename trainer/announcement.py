"""The first line of output: what runs on what."""

from trainer.config import RunConfig
from trainer.distributed import SingleProcess
from trainer.runtime import Surroundings


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
