"""The first line of output: what runs on what."""

from trainer.config import RunConfig
from trainer.distributed import SingleProcess
from trainer.runtime import Surroundings


def first_line(config: RunConfig, comm: SingleProcess, surroundings: Surroundings) -> str:
    """Says in one line what runs on what, and what is not as it was asked for."""
    training, mode, device = config.training, config.mode, config.device
    doing = ("benchmark of " if mode.benchmark else "") + ("evaluation" if mode.evaluate else "training")
    model = config.model.model + (f" (preset {mode.preset})" if mode.preset else "")
    batch = training.eval_batch_size if mode.evaluate else training.global_batch_size
    low, high = batch // comm.size, -(-batch // comm.size)
    parallelism = config.embeddings.embedding_parallelism
    precision = surroundings.device.describe_precision(device.precision)
    if device.amp and not surroundings.device.has_gpu:
        precision += " (emulated on a CPU: slower than float32)"
    parts = [
        f"{doing}, {model}" if mode.benchmark else f"{doing} of {model}",
        surroundings.device.description,
        precision + (", XLA" if device.xla else "") + (", deterministic" if device.deterministic else ""),
        f"{comm.size} rank{'s' if comm.size > 1 else ''} ({comm.description})"
        + (f", embedding_parallelism {parallelism}" if parallelism != "data" else ""),
        f"batch {batch} global, {low if low == high else f'{low} to {high}'} per rank",
        _learning_rates(config),
    ]
    if surroundings.fell_back:
        parts.append("fell back: " + ", ".join(surroundings.fell_back))
    if surroundings.without_effect:
        parts.append("without effect here: " + ", ".join(surroundings.without_effect))
    return " | ".join(parts)


def _learning_rates(config: RunConfig) -> str:
    """The highest rates, scaled, and what they are the rates of."""
    training, factor = config.training, config.learning_rate_factor()
    if config.model.model == "wide_deep":
        return (
            f"learning rates: wide {training.linear_learning_rate * factor:g}, "
            f"deep {training.deep_learning_rate * factor:g}"
        )
    lazy = " (lazy on embedding tables: rows that a batch does not look up keep their state)"
    return f"learning rate {training.learning_rate * factor:g}, {training.optimizer}" + (
        lazy if training.optimizer == "adam" else ""
    )
