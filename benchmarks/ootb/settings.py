"""What of main.py's command line there is out of the box. Without TensorFlow."""

from data.errors import InputError
from trainer.config import RunConfig

_COMMAND = "python -m benchmarks.ootb"


def check(config: RunConfig) -> None:
    """Refuses what plain Keras has no answer for.

    Raises:
      InputError: the message names the flag, its value and the remedy.
    """
    mode, device, flat = config.mode, config.device, config.flat()
    if not mode.benchmark:
        raise InputError(f"{_COMMAND} measures and does nothing else: add --benchmark, or use main.py")

    def refuse(name: str) -> None:
        value = flat[name]
        shown = f"--{name}" if value is True else f"--{name}={value}"
        raise InputError(f"{shown} is not for {_COMMAND}, whose models are plain Keras: leave it out, or use main.py")

    if config.embeddings.embedding_parallelism != "data":
        refuse("embedding_parallelism")
    for name in ("row_slice_threshold", "column_slice_threshold", "data_parallel_threshold"):
        if flat[name] is not None:
            refuse(name)
    if device.table_reduction == "gather":
        refuse("table_reduction")
    for name in ("fp16_compression", "use_checkpoint"):
        if flat[name]:
            refuse(name)
    if not mode.evaluate:
        check_optimizer(config)


def check_optimizer(config: RunConfig) -> None:
    """Refuses an optimizer that Keras does not have.

    Raises:
      InputError: the message names it and those that there are.
    """
    if config.model.model != "wide_deep" and config.training.optimizer == "rowwise_adagrad":
        raise InputError(
            "--optimizer=rowwise_adagrad is not among Keras's optimizers: choose sgd, adagrad, rmsprop or adam, or use "
            "main.py"
        )
