"""The same models in PyTorch, written as its users write them: one EmbeddingBag a feature with sparse gradients.

Weights are those that our model begins with, batches are those of `benchmarks.workloads` with int64 ids in one array
and offsets, which EmbeddingBag takes. It runs op by op.
"""

import importlib.metadata
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks.comparison import Contender
from benchmarks.workloads import Batch, Workload

NOT_INSTALLED = "torch is not installed: pip install -r requirements-peers.txt"
RMSPROP_EPSILON = 1e-7


def is_installed() -> bool:
    """Whether torch is there (requirements-peers.txt)."""
    return importlib.util.find_spec("torch") is not None


def version() -> str:
    """The installed version, or "absent"."""
    return importlib.metadata.version("torch") if is_installed() else "absent"


def use_threads(threads: int) -> None:
    """Sets the threads of one operation, for the whole process; nothing where torch is not installed."""
    if is_installed():
        import torch

        torch.set_num_threads(threads)


class TorchPeer:
    """A model with given weights, and its training and evaluation steps.

    Optimizers: SGD on tables; on everything else RMSprop for Wide & Deep and SGD for DLRM.

    Attributes:
      model: the torch module.
    """

    def __init__(self, workload: Workload, weights: Mapping[str, np.ndarray | list[np.ndarray]]):
        """
        Args:
          workload: shapes and rates.
          weights: as benchmarks.our_steps.weights gives them; they are taken over, not copied.
        """
        import torch

        self._workload = workload
        is_wide_deep = workload.config.model.model == "wide_deep"
        self.model = (_wide_deep if is_wide_deep else _dlrm)(workload, weights)
        self._loss = torch.nn.BCEWithLogitsLoss()
        self._optimizers = (_rmsprop_and_sgd if is_wide_deep else _sgd)(workload, self.model)

    def set_dropout(self, rate: float) -> None:
        """Changes the rate of all dropout layers."""
        import torch

        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = rate

    def prepare(self, batch: Batch) -> dict:
        """The batch as the model takes it."""
        import torch

        lookups, column = {}, 0
        spec = self._workload.spec
        for name in spec.categorical:
            hotness = spec.features[name].max_hotness
            lookup = _lookup(batch["ids"][:, column : column + hotness].astype(np.int64))
            lookups[name] = tuple(map(torch.from_numpy, lookup))
            column += hotness
        prepared = {
            "lookups": lookups,
            "numerical": torch.from_numpy(batch["numerical"]),
            "labels": torch.from_numpy(batch["labels"]),
        }
        if "wide" in self.model:
            prepared["wide"] = tuple(map(torch.from_numpy, _all_features(batch["ids"], _first_rows(spec))))
        return prepared

    def losses(self, batches: Sequence[Batch]) -> list[float]:
        """Trains on each batch once; the loss of each before its update."""
        return [float(self._train(self.prepare(batch))) for batch in batches]

    def trains(self, batches: Iterator[dict], steps: int) -> Contender:
        """Trains on the next prepared batches, `steps` at each turn."""

        def work() -> tuple[float, float]:
            started = time.perf_counter()
            for _ in range(steps):
                loss = self._train(next(batches))
            float(loss)
            return steps * self._workload.batch_size, time.perf_counter() - started

        return work

    def scores(self, batches: Iterator[dict], steps: int) -> Contender:
        """Logits of the next prepared batches, `steps` at each turn, without gradients."""
        import torch

        def work() -> tuple[float, float]:
            self.model.eval()
            started = time.perf_counter()
            with torch.no_grad():
                for _ in range(steps):
                    self._logits(next(batches)).numpy()
            return steps * self._workload.batch_size, time.perf_counter() - started

        return work

    def endless(self, batches: Sequence[Batch]) -> Iterator[dict]:
        """The batches as the model takes them, made now, over and over."""
        return itertools.cycle([self.prepare(batch) for batch in batches])

    def _logits(self, batch: dict):
        return _LOGITS[self._workload.config.model.model](self.model, batch)

    def _train(self, batch: dict):
        self.model.train()
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss = self._loss(self._logits(batch), batch["labels"])
        loss.backward()
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.detach()


def drawn_as_fambench(workload: Workload, *, seed: int = 1) -> Iterator[dict]:
    """Batches drawn when they are asked for, the way of FAMBench's DLRM: lookup by lookup, repeats dropped.

    The number of draws of a lookup is the hotness ("fixed" pooling) or uniform from 1 to it.
    """
    import torch

    rng = np.random.default_rng(seed)
    spec, rows = workload.spec, workload.batch_size
    while True:
        lookups = {}
        for name in spec.categorical:
            feature = spec.features[name]
            bags = []
            for _ in range(rows):
                draws = feature.max_hotness
                if workload.draw.pooling != "fixed":
                    draws = max(1, round(rng.random() * feature.max_hotness))
                bags.append(np.unique(np.round(rng.random(draws) * (feature.cardinality - 1)).astype(np.int64)))
            offsets = np.cumsum([0, *(len(bag) for bag in bags[:-1])])
            lookups[name] = (torch.from_numpy(np.concatenate(bags)), torch.from_numpy(offsets))
        yield {
            "lookups": lookups,
            "numerical": torch.from_numpy(rng.random((rows, len(spec.numerical)), dtype=np.float32)),
            "labels": torch.from_numpy(np.round(rng.random(rows, dtype=np.float32))),
        }


# The two models.


def _wide_deep(workload: Workload, weights: Mapping):
    import torch

    nn, spec = torch.nn, workload.spec
    wide_bias, *wide_numerical = weights["wide"]
    *hidden, head_kernel, head_bias = weights["deep"]
    layers = []
    for kernel, bias in _pairs(hidden):
        layers += [_linear(kernel, bias), nn.ReLU(), nn.Dropout(workload.config.model.deep_dropout)]
    # The order in which our model's first layer has them.
    by_falling_dim = sorted(spec.categorical, key=lambda name: -weights[f"deep/{name}"].shape[1])
    wide = np.concatenate([weights[f"wide/{name}"] for name in spec.categorical])
    return nn.ModuleDict(
        {
            "bags": nn.ModuleDict({name: _bag(weights[f"deep/{name}"]) for name in by_falling_dim}),
            "wide": _bag(wide),  # all features in one: with one bag a feature it would be slower
            "wide_numerical": _linear(wide_numerical[0][:, None], wide_bias.reshape(1)),
            "mlp": nn.Sequential(*layers, _linear(head_kernel, head_bias)),
        }
    )


def _wide_deep_logits(model, batch: dict):
    import torch

    pooled = [bag(*batch["lookups"][name]) for name, bag in model["bags"].items()]
    deep = model["mlp"](torch.cat([*pooled, batch["numerical"]], dim=1))
    return (deep + model["wide"](*batch["wide"]) + model["wide_numerical"](batch["numerical"])).squeeze(1)


def _dlrm(workload: Workload, weights: Mapping):
    import torch

    nn, spec = torch.nn, workload.spec
    layers = [_linear(kernel, bias) for kernel, bias in _pairs(weights["main"])]
    bottom = layers[: len(workload.config.model.bottom_mlp_dims)]
    *top, head = layers[len(bottom) :]

    def mlp(linears):
        return [module for linear in linears for module in (linear, nn.ReLU())]

    return nn.ModuleDict(
        {
            "bags": nn.ModuleDict({name: _bag(weights[f"main/{name}"]) for name in spec.categorical}),
            "bottom": nn.Sequential(*mlp(bottom)),
            "top": nn.Sequential(*mlp(top), head),
        }
    )


def _dlrm_logits(model, batch: dict):
    import torch

    dense = model["bottom"](batch["numerical"])
    vectors = [dense, *(bag(*batch["lookups"][name]) for name, bag in model["bags"].items())]
    stacked = torch.cat(vectors, dim=1).view(len(dense), len(vectors), -1)
    products = torch.bmm(stacked, stacked.transpose(1, 2))
    above, left = torch.tril_indices(len(vectors), len(vectors), offset=-1)
    return model["top"](torch.cat([dense, products[:, above, left]], dim=1)).squeeze(1)


_LOGITS: Mapping[str, Callable] = {"wide_deep": _wide_deep_logits, "dlrm": _dlrm_logits}


def _rmsprop_and_sgd(workload: Workload, model):
    import torch

    def groups(deep: str, wide: str) -> list[dict]:
        rates = workload.learning_rates
        return [
            {"params": model[deep].parameters(), "lr": rates["deep"]},
            {"params": model[wide].parameters(), "lr": rates["wide"]},
        ]

    return [
        torch.optim.SGD(groups("bags", "wide")),
        torch.optim.RMSprop(groups("mlp", "wide_numerical"), alpha=0.5, eps=RMSPROP_EPSILON),
    ]


def _sgd(workload: Workload, model):
    import torch

    return [torch.optim.SGD(model.parameters(), lr=workload.learning_rates["main"])]


# Pieces.


def _pairs(arrays: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return zip(arrays[::2], arrays[1::2], strict=True)


def _bag(table: np.ndarray):
    import torch

    return torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(table), freeze=False, mode="sum", sparse=True)


def _linear(kernel: np.ndarray, bias: np.ndarray):
    import torch

    layer = torch.nn.utils.skip_init(torch.nn.Linear, *kernel.shape)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(kernel.T)))
        layer.bias.copy_(torch.from_numpy(np.array(bias)))
    return layer


def _lookup(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids that are present, row after row, and where each row begins: what EmbeddingBag takes."""
    present = ids >= 0
    counts = present.sum(axis=1)
    return ids[present], np.cumsum(counts) - counts


def _first_rows(spec) -> np.ndarray:
    """Of each packed column, the first row of its feature in the tables of all features one below the other."""
    cardinalities = [spec.features[name].cardinality for name in spec.categorical]
    hotness = [spec.features[name].max_hotness for name in spec.categorical]
    return np.repeat(np.cumsum([0, *cardinalities[:-1]]), hotness)


def _all_features(ids: np.ndarray, first_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _lookup(np.where(ids >= 0, ids + first_rows, -1))


def matrix_product() -> tuple[Callable, Callable]:
    """product(a, b, transpose a, transpose b) in PyTorch, and what makes its tensors of arrays."""
    import torch

    return lambda a, b, left, right: torch.mm(a.T if left else a, b.T if right else b), torch.from_numpy
