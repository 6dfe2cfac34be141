"""Where a run's figures go while it runs. A writer is chosen once, by rank, so that no loop asks for the rank.

Every writer has the same five calls, and does nothing in those that do not concern it:

    write_parameters(config)   the configuration, once, before the first step
    write(step, values)        figures at a log point; step is a number or a sequence such as (epoch, step)
    write_final(values)        the figures of the whole run
    step_done()                one more step has ended (progress only)
    close()
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from data.errors import InputError
from trainer.records import jsonable

Step = int | Sequence[int]

# Names that existing readers of the log know, with their units.
UNITS: Mapping[str, str | None] = {
    "loss": None,
    "loss_val": None,
    "streaming_map_val": None,
    "auc_roc": None,
    "batch_samplesps": "samples/s",
    "train_throughput": "samples/s",
    "validation_throughput": "samples/s",
}


class NullWriter:
    """Writes nothing: the writer of every rank but the chief, and the base of those that write."""

    def write_parameters(self, config: Mapping[str, Any]) -> None:
        """The configuration of the run."""

    def write(self, step: Step, values: Mapping[str, Any]) -> None:
        """Figures at a log point, by name."""

    def write_final(self, values: Mapping[str, Any]) -> None:
        """Figures of the whole run, by name."""

    def step_done(self) -> None:
        """One more step has ended."""

    def close(self) -> None:
        """Nothing will be written any more."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class DLLoggerWriter(NullWriter):
    """A log in the JSON stream format of DLLogger 1.0, one line each: `DLLL ` and an object of strict JSON.

    timestamp: milliseconds since the Unix epoch, text. datetime: the same moment, local time. elapsedtime: seconds
    since the log was opened, text. type LOG: step (number, list, "PARAMETER", or [] for the final figures) and data.
    type METADATA: metric and metadata; one line for each name of UNITS stands at the beginning. A figure that is not
    finite is null.

    Opening empties the file; each line is in it when its call returns.
    """

    def __init__(self, path: str | os.PathLike, *, clock: Callable[[], float] = time.time):
        """clock: seconds since the Unix epoch. Raises InputError if the file cannot be written."""
        self._clock = clock
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Line buffering: a killed run loses no line that it has written.
            self._file = open(path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - open until close()
        except OSError as error:
            message = f"cannot write the log {path}: {error.strerror}; give a writable results_dir and log_filename"
            raise InputError(message) from error
        self._opened = clock()
        for metric, unit in UNITS.items():
            self._write_line("METADATA", metric=metric, metadata={"unit": unit})

    def write_parameters(self, config: Mapping[str, Any]) -> None:
        self._write_line("LOG", step="PARAMETER", data=config)

    def write(self, step: Step, values: Mapping[str, Any]) -> None:
        self._write_line("LOG", step=step, data=values)

    def write_final(self, values: Mapping[str, Any]) -> None:
        self._write_line("LOG", step=[], data=values)

    def close(self) -> None:
        self._file.close()

    def _write_line(self, kind: str, **content: Any) -> None:
        now = self._clock()
        line = {
            "timestamp": f"{now * 1000:.3f}",
            "datetime": str(datetime.fromtimestamp(now)),
            "elapsedtime": f"{now - self._opened:.6f}",
            "type": kind,
            **content,
        }
        self._file.write(f"DLLL {json.dumps(jsonable(line), allow_nan=False)}\n")


class ConsoleWriter(NullWriter):
    """One readable line for each log point and one for the final figures."""

    def __init__(self, write_line: Callable[[str], object]):
        """write_line: takes a line without its end; `line_writer(stream)` makes one, a ProgressBar has one."""
        self._write_line = write_line

    def write(self, step: Step, values: Mapping[str, Any]) -> None:
        place = f"step {step:,}" if isinstance(step, int) else f"step {'/'.join(map(str, step))}"
        self._write_line(_spell(place, values))

    def write_final(self, values: Mapping[str, Any]) -> None:
        self._write_line(_spell("final", values))


class ProgressBar(NullWriter):
    """A bar that follows `step_done` on a terminal. `progress_bar` makes one where there is a terminal."""

    def __init__(self, total_steps: int | None, stream: TextIO):
        from tqdm import tqdm  # Here, because most runs have no terminal and need no tqdm.

        self._bar = tqdm(total=total_steps, file=stream, unit="step", dynamic_ncols=True, leave=False)

    def step_done(self) -> None:
        self._bar.update()

    def write_line(self, line: str, stream: TextIO) -> None:
        """Writes a line to a stream of the same terminal, where the bar was; the next step draws the bar below it."""
        # Not tqdm's own write, which knows that two streams are one terminal only of sys.stdout and sys.stderr.
        self._bar.clear()
        print(line, file=stream, flush=True)

    def close(self) -> None:
        self._bar.close()


class MultiWriter(NullWriter):
    """Passes every call on to several writers, in their order."""

    def __init__(self, writers: Sequence[NullWriter]):
        self._writers = tuple(writers)

    def write_parameters(self, config: Mapping[str, Any]) -> None:
        for writer in self._writers:
            writer.write_parameters(config)

    def write(self, step: Step, values: Mapping[str, Any]) -> None:
        for writer in self._writers:
            writer.write(step, values)

    def write_final(self, values: Mapping[str, Any]) -> None:
        for writer in self._writers:
            writer.write_final(values)

    def step_done(self) -> None:
        for writer in self._writers:
            writer.step_done()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def line_writer(stream: TextIO) -> Callable[[str], None]:
    """A function that writes a line to `stream` and flushes it."""
    return lambda line: print(line, file=stream, flush=True)


def progress_bar(total_steps: int | None, stream: TextIO) -> ProgressBar | None:
    """A progress bar if `stream` is a terminal and tqdm is installed, otherwise None."""
    if not stream.isatty():
        return None
    try:
        return ProgressBar(total_steps, stream)
    except ImportError:
        return None


def make_writer(
    is_chief: bool,
    *,
    log_path: str | os.PathLike,
    stream: TextIO,
    terminal: TextIO | None = None,
    total_steps: int | None = None,
    clock: Callable[[], float] = time.time,
) -> NullWriter:
    """The writer of this rank: log, console lines and, on a terminal, a progress bar for the chief; none for others.

    stream: takes the console lines. terminal: takes the bar if it is a terminal; None for `stream`. They differ where
      `stream` is a pipe into a file as well, which no bar should fill.
    total_steps: length of the bar; None if it is not known.
    """
    if not is_chief:
        return NullWriter()
    log = DLLoggerWriter(log_path, clock=clock)
    bar = progress_bar(total_steps, terminal or stream)
    if bar is None:
        return MultiWriter([log, ConsoleWriter(line_writer(stream))])
    return MultiWriter([log, ConsoleWriter(lambda line: bar.write_line(line, stream)), bar])


def _spell(place: str, values: Mapping[str, Any]) -> str:
    return "  ".join([place, *(f"{name} {_figure(value, UNITS.get(name))}" for name, value in values.items())])


def _figure(value: Any, unit: str | None) -> str:
    """Counts and rates with separators, everything else to six significant digits; NaN as it is."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = str(value)
    elif isinstance(value, int):
        text = f"{value:,}"
    elif math.isfinite(value) and unit is not None:
        text = f"{value:,.1f}"
    else:
        text = f"{value:.6g}"
    return f"{text} {unit}" if unit else text
