"""Merlin's dataloader (merlin.dataloader.tensorflow), to be measured beside the own input pipeline."""

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Callable, Sequence


def is_installed() -> bool:
    """Whether the packages are there (`make setup` without PREPROC=0)."""
    return importlib.util.find_spec("merlin") is not None and importlib.util.find_spec("nvtabular") is not None


def epoch_reader(paths: Sequence[str], columns: Sequence[str], label: str, batch_size: int) -> Callable[[], int]:
    """A function that reads all rows of the files once, shuffled, as tensors, and returns their number.

    The loader keeps its files open in between, as it does from epoch to epoch of a training.
    """
    with _quiet():
        from merlin.dataloader.tensorflow import Loader
        from merlin.io import Dataset
        from merlin.schema import Tags

        dataset = Dataset(list(paths), engine="parquet", cpu=True)
        schema = dataset.schema.select_by_name(list(columns))
        schema[label] = schema[label].with_tags([Tags.TARGET])
        dataset.schema = schema
        loader = Loader(dataset, batch_size=batch_size, shuffle=True)

    def read() -> int:
        with _quiet():
            return sum(int(labels.shape[0]) for _, labels in loader)

    return read


@contextlib.contextmanager
def _quiet():
    """Without what Merlin has to say about PyTorch, Triton and machines that have no GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
