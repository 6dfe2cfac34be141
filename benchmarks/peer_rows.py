"""The rows of `benchmarks.compare_peers`: what is compared with what, for how long, and the targets.

A function for each workload returns rows; it is run in a process of its own (`benchmarks.own_process`).
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import torch_peer, workloads
from benchmarks.comparison import Contender, Row, measure
from benchmarks.torch_peer import TorchPeer
from benchmarks.workloads import Batch, Workload

if TYPE_CHECKING:
    from benchmarks.our_steps import OurSteps

OURS, PRODUCTS, KERAS, TORCH = "ours", "matrix products", "Keras", "PyTorch"
TIMES_AS_FAST, OF_ITS_SPEED = "times as fast: ours", "of its speed: ours"
SAMPLES = "samples/s"
SGD_ON_TABLES = "SGD on its tables, which have no FTRL and RMSprop of rows"

# How far losses of the same batches from the same weights may be apart. Under SGD rounding alone parts them (4e-6 was
# seen); RMSprop moves a weight as far for a tiny gradient as for a large one, whatever rounding has made of its sign
# (3e-4 was seen).
AGREEMENT_STEPS, AGREEMENT_ROWS = 20, 256
SGD_AGREEMENT, RMSPROP_AGREEMENT = 1e-4, 1e-3


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a comparison is run.

    Attributes:
      runs: measured turns of each contender.
      threads: of one operation, of every contender.
      xla: our steps compile their dense part.
      shrink: everything is that many times smaller; figures then mean nothing.
      say: takes a line of progress.
    """

    runs: int = 5
    threads: int = 1
    xla: bool = False
    shrink: int = 1
    say: Callable[[str], None] = print

    def steps(self, number: int) -> int:
        """Steps of a turn; `number` should last for seconds: a shared machine is often slow for some tenths of one."""
        return number if self.shrink == 1 else 2


@dataclasses.dataclass(frozen=True)
class Against:
    """A contender beside ours, and how fast ours should be compared with it."""

    work: Contender | None
    target: float | None
    ratio_is: str = TIMES_AS_FAST
    note: str = ""


def wide_deep_training(settings: Settings) -> list[Row]:
    """Wide & Deep at batch 4096: the hidden layers' products, Keras `fit`, PyTorch."""
    from benchmarks.our_steps import OurSteps, endless

    workload = _wide_deep(settings)
    batches = workload.batches()
    steps = settings.steps(4)
    peer, disagreement = _torch_trained_as_ours(workload, batches, settings)
    keras = _keras(workload, batches, jit_compile=False)
    ours = OurSteps(workload)
    against = {
        **_products(ours, steps, gradients=True, target=0.92),
        KERAS: Against(keras.trains(steps), 1.7, note="fit"),
        TORCH: _torch(peer, disagreement, lambda: peer.trains(peer.endless(batches), steps), 1.05, SGD_ON_TABLES),
    }
    return compare("wide_deep_training", ours.trains(endless(batches), steps), against, settings)


def wide_deep_evaluation(settings: Settings) -> list[Row]:
    """Wide & Deep's evaluation, metrics included, at batch 4096: forward products, Keras `predict`, PyTorch."""
    from benchmarks.our_steps import OurSteps, endless, weights

    workload = _wide_deep(settings)
    batches = workload.batches()
    steps = settings.steps(6)
    ours = OurSteps(workload, training=False)
    peer = TorchPeer(workload, weights(ours.model)) if torch_peer.is_installed() else None
    keras = _keras(workload, batches, jit_compile=True)
    against = {
        **_products(ours, steps, gradients=False, target=0.92),
        KERAS: Against(keras.scores(steps), 1.1, note="predict with jit_compile, no metrics"),
        TORCH: _torch(peer, "", lambda: peer.scores(peer.endless(batches), steps), 0.95, "no_grad, no metrics"),
    }
    work = ours.scores(endless(batches), steps, with_metrics=True)
    return compare("wide_deep_evaluation", work, against, settings)


def dlrm_training(settings: Settings) -> list[Row]:
    """DLRM "tiny", both poolings, the same ids made before: the layers' products, PyTorch."""
    from benchmarks.our_steps import endless

    rows, steps = [], settings.steps(128)
    workload = _dlrm_tiny(settings)
    ours, peer, disagreement = _both_dlrm(workload, settings)
    for pooling in ("distinct", "fixed"):
        batches = dataclasses.replace(workload, draw=dataclasses.replace(workload.draw, pooling=pooling)).batches()
        rows += compare(
            f"dlrm_training, {pooling}",
            ours.trains(endless(batches), steps),
            {
                **_products(ours, steps, gradients=True),
                TORCH: _torch(peer, disagreement, lambda b=batches: peer.trains(peer.endless(b), steps), 1.8),
            },
            settings,
        )
    return rows


def dlrm_data_in_loop(settings: Settings) -> list[Row]:
    """DLRM "tiny", both poolings, each drawing its batches as it goes: PyTorch with FAMBench's way of drawing."""
    from benchmarks.our_steps import drawn

    rows, steps = [], settings.steps(128)
    workload = _dlrm_tiny(settings)
    ours, peer, disagreement = _both_dlrm(workload, settings)
    for pooling in ("distinct", "fixed"):
        of_pooling = dataclasses.replace(workload, draw=dataclasses.replace(workload.draw, pooling=pooling))

        def trains(of_pooling: Workload = of_pooling) -> Contender:
            return peer.trains(torch_peer.drawn_as_fambench(of_pooling), steps)

        rows += compare(
            f"dlrm_data_in_loop, {pooling}",
            ours.trains(drawn(of_pooling), steps),
            {TORCH: _torch(peer, disagreement, trains, 2.0, "FAMBench's way of drawing")},
            settings,
        )
    return rows


def dlrm_inference(settings: Settings) -> list[Row]:
    """DLRM "tiny", 100 ids in every lookup: the layers' products, PyTorch without gradients."""
    from benchmarks.our_steps import OurSteps, endless, weights

    workload = _dlrm_tiny(settings, "fixed")
    batches, steps = workload.batches(), settings.steps(256)
    ours = OurSteps(workload, training=False)
    peer = TorchPeer(workload, weights(ours.model)) if torch_peer.is_installed() else None
    against = {
        **_products(ours, steps, gradients=False),
        TORCH: _torch(peer, "", lambda: peer.scores(peer.endless(batches), steps), 0.9, "no_grad"),
    }
    return compare("dlrm_inference", ours.scores(endless(batches), steps, with_metrics=False), against, settings)


def criteo_training(settings: Settings) -> list[Row]:
    """DLRM of the preset "criteo" with tables of 2 GB in all, batch 2048: the layers' products, PyTorch."""
    from benchmarks.our_steps import endless

    workload = _dlrm_criteo(settings)
    batches, steps = workload.batches(), settings.steps(8)
    ours, peer, disagreement = _both_dlrm(workload, settings)
    against = {
        **_products(ours, steps, gradients=True),
        TORCH: _torch(peer, disagreement, lambda: peer.trains(peer.endless(batches), steps), 1.2),
    }
    return compare("criteo_training", ours.trains(endless(batches), steps), against, settings)


def table_size(settings: Settings) -> list[Row]:
    """Wide & Deep at batch 4096 with tables 10 times larger: the same with Outbrain's."""
    from benchmarks.our_steps import OurSteps, endless

    steps, work = settings.steps(4), {}
    for name, grow in (("Outbrain's tables", 1), ("tables 10 times larger", 10)):
        workload = _with_xla(workloads.wide_deep(shrink=settings.shrink, grow=grow), settings)
        work[name] = OurSteps(workload).trains(endless(workload.batches()), steps)
    speeds = measure(work, settings.runs, settings.say, SAMPLES)
    rows = [row_of(f"table_size: {name}", values) for name, values in speeds.items()]
    slower = rows[0].figure / rows[1].figure
    rows[1] = dataclasses.replace(rows[1], ratio=slower, ratio_is="times the step time", target=1.05, at_most=True)
    return rows


def compare(name: str, ours: Contender, against: Mapping[str, Against], settings: Settings) -> list[Row]:
    """Measures all in turns: a row for ours, and one for each of the others with the ratio of ours to it.

    Of several contenders named "NAME (...)" only the fastest has a row: it is the one to be compared with.
    """
    work = {OURS: ours} | {other: it.work for other, it in against.items() if it.work is not None}
    speeds = measure(work, settings.runs, lambda line: settings.say(f"{name}: {line}"), SAMPLES)
    medians = {other: statistics.median(values) for other, values in speeds.items()}
    rows = [row_of(f"{name}: {OURS}", speeds[OURS])]
    for other, it in against.items():
        relatives = [one for one in medians if _family(one) == _family(other)]
        if it.work is None:
            rows.append(Row(f"{name}: {other}", None, SAMPLES, target=it.target, note=it.note))
        elif medians[other] == max(medians[one] for one in relatives):
            measured = row_of(f"{name}: {other}", speeds[other])
            ratio = medians[OURS] / medians[other]
            rows.append(
                dataclasses.replace(measured, ratio=ratio, ratio_is=it.ratio_is, target=it.target, note=it.note)
            )
    return rows


def row_of(name: str, values: Sequence[float], unit: str = SAMPLES) -> Row:
    """A row with the median and the spread of some figures."""
    return Row(name, statistics.median(values), unit, min(values), max(values))


def disagreement_of(ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> str:
    """Where two series of losses part, for people; empty if they agree to a relative tolerance."""
    for step, (own, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        if not abs(own - other) <= tolerance * abs(own):
            return f"losses disagree: {own:.6f} ours and {other:.6f} its at step {step} of {len(ours)}"
    return ""


# Workloads.


def _wide_deep(settings: Settings) -> Workload:
    return _with_xla(workloads.wide_deep(shrink=settings.shrink), settings)


def _dlrm_tiny(settings: Settings, pooling: str = "distinct") -> Workload:
    return _with_xla(workloads.dlrm_tiny(pooling, shrink=settings.shrink), settings)


def _dlrm_criteo(settings: Settings) -> Workload:
    return _with_xla(workloads.dlrm_criteo(shrink=settings.shrink), settings)


def _with_xla(workload: Workload, settings: Settings) -> Workload:
    return workload.changed(xla=True) if settings.xla else workload


TRAINED: Mapping[str, Callable[[Settings], Workload]] = {
    "wide_deep_training": _wide_deep,
    "dlrm_training": _dlrm_tiny,
    "criteo_training": _dlrm_criteo,
}

# Contenders.


def _products(ours: "OurSteps", steps: int, *, gradients: bool, target: float | None = None) -> dict[str, Against]:
    from benchmarks import products

    batch = ours.workload.batch_size
    layers = ours.hidden_layers()
    found = products.contenders(batch, layers, steps, gradients=gradients)
    flops = products.flops(batch, layers, gradients=gradients) / batch
    return {
        f"{PRODUCTS} ({library})": Against(work, target, OF_ITS_SPEED, f"{flops / 1e6:.1f} MFLOP a sample")
        for library, work in found.items()
    }


def _keras(workload: Workload, batches: Sequence[Batch], *, jit_compile: bool):
    from benchmarks.keras_peer import KerasPeer

    return KerasPeer(workload, batches, embedding_dims(workload), jit_compile=jit_compile)


def _torch(
    peer: TorchPeer | None, disagreement: str, make: Callable[[], Contender], target: float, note: str = ""
) -> Against:
    if peer is None or disagreement:
        return Against(None, target, note=disagreement or torch_peer.NOT_INSTALLED)
    return Against(make(), target, note=note)


def _torch_trained_as_ours(
    workload: Workload, batches: Sequence[Batch], settings: Settings
) -> tuple[TorchPeer | None, str]:
    """Wide & Deep in PyTorch, and how its losses differ from ours with its optimizers, without dropout."""
    from benchmarks.our_steps import OurSteps, RMSpropBesideSGD, weights

    if not torch_peer.is_installed():
        return None, ""
    few = _few_rows(workload, batches)
    without_dropout = workload.changed(deep_dropout=0.0, global_batch_size=len(few[0]["labels"]))
    rate = workload.learning_rates["wide"]
    optimizers = {group: RMSpropBesideSGD(rate, torch_peer.RMSPROP_EPSILON) for group in ("wide", "deep")}
    ours = OurSteps(without_dropout, optimizers=optimizers)
    peer = TorchPeer(workload, weights(ours.model))
    peer.set_dropout(0.0)
    disagreement = _compare_losses(ours.losses(few), peer.losses(few), RMSPROP_AGREEMENT, settings)
    peer.set_dropout(workload.config.model.deep_dropout)
    return peer, disagreement


def _both_dlrm(workload: Workload, settings: Settings):
    """Our DLRM, PyTorch's with the same weights (None where there is none), and how their losses differ."""
    from benchmarks.our_steps import OurSteps, weights

    if not torch_peer.is_installed():
        return OurSteps(workload), None, ""
    few = _few_rows(workload, workload.batches(AGREEMENT_STEPS, seed=2))
    ours = OurSteps(workload.changed(global_batch_size=len(few[0]["labels"])))
    peer = TorchPeer(workload, weights(ours.model))
    disagreement = _compare_losses(ours.losses(few), peer.losses(few), SGD_AGREEMENT, settings)
    if ours.workload != workload:
        del ours  # before there is another
        return OurSteps(workload), peer, disagreement
    return ours, peer, disagreement


def _few_rows(workload: Workload, batches: Sequence[Batch]) -> list[Batch]:
    return [{name: np.array(array[:AGREEMENT_ROWS]) for name, array in b.items()} for b in batches[:AGREEMENT_STEPS]]


def _compare_losses(ours: Sequence[float], theirs: Sequence[float], tolerance: float, settings: Settings) -> str:
    difference = max(abs(a - b) / abs(a) for a, b in zip(ours, theirs, strict=True))
    settings.say(f"losses of {len(ours)} steps, ours and PyTorch's, differ by at most {difference:.1e} of themselves")
    return disagreement_of(ours, theirs, tolerance)


def embedding_dims(workload: Workload) -> dict[str, int]:
    """Embedding dimension of each feature of a Wide & Deep."""
    from trainer.assembly import table_groups

    groups = table_groups(workload.config, workload.spec)
    return {table.name: group.dim for group in groups if not group.sum_features for table in group.tables}


def _family(name: str) -> str:
    return name.split(" (")[0]
