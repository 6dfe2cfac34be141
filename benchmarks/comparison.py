"""What comparing benchmarks have in common: contenders that take turns, rows of a result, its table and its JSON."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

from data.errors import InputError

Contender = Callable[[], tuple[float, float]]
"""Does a fixed piece of work and returns how much it was, in units of work, and the seconds that it took."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the result.

    Attributes:
      figure: median, in `unit`; None where it could not be measured.
      lowest, highest: of the passes.
      ratio: what `ratio_is` says, of medians.
      target: the least or, where `at_most`, the most that the ratio should be; None without one.
      note: why there is no figure, or what the reader of the figure must know.
    """

    name: str
    figure: float | None
    unit: str
    lowest: float | None = None
    highest: float | None = None
    ratio: float | None = None
    ratio_is: str = ""
    target: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one or without a ratio."""
        if self.target is None or self.ratio is None:
            return None
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target


def measure(
    contenders: Mapping[str, Contender],
    passes: int,
    say: Callable[[str], None] = lambda _: None,
    unit: str = "rows/s",
    left_out: int = 1,
) -> dict[str, list[float]]:
    """Speed of every contender, in units of work a second, in each of `passes` passes.

    In a pass each works once, one after the other, so that what slows the machine for a while slows them all.

    Args:
      contenders: by name, in the order of their turns.
      passes: measured passes.
      say: takes a line for each turn.
      unit: of the speeds, for these lines.
      left_out: passes before the measured ones, which are not kept.
    """
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(1 - left_out, passes + 1):
        for name, work in contenders.items():
            amount, seconds = work()
            kept = number > 0
            say(f"pass {number} of {passes}: {name}: {amount / seconds:,.0f} {unit}{'' if kept else ' (left out)'}")
            if kept:
                speeds[name].append(amount / seconds)
    return speeds


def render(rows: Sequence[Row]) -> str:
    """The result, for people: a line for each row."""
    name_width = max((26, *(len(row.name) for row in rows)))
    unit_width = max((6, *(len(row.unit) for row in rows)))
    ratio_width = max((42, *(len(_ratio(row)) for row in rows)))
    lines = []
    for row in rows:
        if row.figure is None:
            lines.append(f"{row.name:{name_width}} {row.note}".rstrip())
            continue
        spread = "" if row.lowest is None else f"({_number(row.lowest)} to {_number(row.highest)})"
        target = ""
        if row.met is not None:
            target = f"target: at {'most' if row.at_most else 'least'} {row.target:g}, {'met' if row.met else 'MISSED'}"
        note = f" [{row.note}]" if row.note else ""
        figure = f"{_number(row.figure):>14} {row.unit:{unit_width}}"
        lines.append(f"{row.name:{name_width}}{figure} {spread:26} {_ratio(row):{ratio_width}} {target}{note}".rstrip())
    return "\n".join(lines)


def write_json(rows: Sequence[Row], path: str) -> None:
    """Writes the rows as a list of objects.

    Raises:
      InputError: the file cannot be written.
    """
    document = [dataclasses.asdict(row) | {"met": row.met} for row in rows]
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
    except OSError as error:
        raise InputError(f"--json={path}: cannot be written: {error.strerror}") from error


def _ratio(row: Row) -> str:
    return "" if row.ratio is None else f"{row.ratio:.2f} {row.ratio_is}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
