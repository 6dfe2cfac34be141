"""Matrix products: (m, k) by (k, n), 2 m n k floating-point operations each.

The product of some rows, the first and the last among them, is compared with numpy's before the loop, and that of the
loop's last step after it. The operands stay the same from step to step, as in FAMBench: small ones are then in caches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.microbenchmarks import checks
from benchmarks.microbenchmarks.operands import float64, last_value, normal, read_sums
from benchmarks.microbenchmarks.shapes import BYTES_OF, PROCESS_BYTES, Benchmark, Settings, Shape
from benchmarks.microbenchmarks.timed import Work

_CHECKED_OPERATIONS = 2e9  # of numpy's product: at most that many rows are checked
_MOST_ROWS = 4096


def operations(shapes: Sequence[Shape]) -> int:
    """Floating-point operations of a step: 2 m n k for each product."""
    return sum(2 * m * n * k for m, n, k in shapes)


def moved_bytes(shapes: Sequence[Shape], precision: str) -> int:
    """What a step must read and write at least: every operand and every product once."""
    return BYTES_OF[precision] * sum(m * k + k * n + m * n for m, n, k in shapes)


def predicted_bytes(settings: Settings, ranks: int) -> int:
    """The operands, each drawn in float32 first, and a product that is read back while the last one is still there."""
    del ranks
    m, n, k = (max(numbers) for numbers in zip(*settings.shapes, strict=True))
    drawn = 8 * max(m * k, k * n)
    products = 2 * BYTES_OF[settings.precision] * sum(m * n for m, n, _ in settings.shapes)
    return PROCESS_BYTES + moved_bytes(settings.shapes, settings.precision) + drawn + products


def prepare(settings: Settings, comm: Any) -> Work:
    """Every rank multiplies operands of its own."""
    import tensorflow as tf

    rng = np.random.default_rng(comm.rank)
    precision, shapes = settings.precision, settings.shapes
    pairs = [(normal(rng, (m, k), precision), normal(rng, (k, n), precision)) for m, n, k in shapes]

    @tf.function(autograph=False)
    def multiply(pairs):
        products = [tf.matmul(left, right) for left, right in pairs]
        return products, tf.add_n([last_value(product) for product in products])

    rows = [checks.sampled(m, int(max(2, min(_MOST_ROWS, _CHECKED_OPERATIONS / (2 * n * k))))) for m, n, k in shapes]
    expected: list[np.ndarray] = []

    def compare(when: str, products: Sequence[tf.Tensor]) -> list[checks.Check]:
        if not expected:
            expected.extend(
                float64(tf.gather(left, part)) @ float64(right) for (left, right), part in zip(pairs, rows, strict=True)
            )
        return [
            checks.close(
                f"{when}, {len(part):,} of {m:,} rows of the product {m},{n},{k}",
                float64(tf.gather(product, part)),
                reference,
                precision,
            )
            for (m, n, k), part, product, reference in zip(shapes, rows, products, expected, strict=True)
        ]

    amount = operations(shapes)
    return Work(
        step=lambda: multiply(pairs),
        wait=lambda result: result[1].numpy(),
        read=lambda result: read_sums(result[0]),
        before=lambda: compare("before", multiply(pairs)[0]),
        after=lambda result: compare("after", result[0]),
        amount=amount * comm.size,
        figures={"gflop_per_step": amount / 1e9, "bytes_per_step": moved_bytes(shapes, precision)},
    )


BENCHMARK = Benchmark(
    name="gemm",
    units="TF/s",
    modes=("forward",),
    numbers=("m", "n", "k"),
    presets={"small": ((256, 1024, 1024),)},
    batch_number=0,
    predicted_bytes=predicted_bytes,
    prepare=prepare,
)
