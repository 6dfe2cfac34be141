"""The report in a study's folder."""

import contextlib
import dataclasses
import pathlib

from benchmarks.study.report import blocks, checks, clicks, comparisons, counted
from benchmarks.study.report.sections import sections
from data.errors import InputError
from data.whole_files import write

MARKDOWN, PAGE = "report.md", "report.html"


@dataclasses.dataclass(frozen=True)
class Written:
    """A report.

    Attributes:
      paths: of its files.
      verdicts: what the study shows, a line for each setting, and of real clicks for each configuration.
      problems: why that must not be relied on, a line each.
    """

    paths: tuple[pathlib.Path, ...]
    verdicts: tuple[str, ...]
    problems: tuple[str, ...]


def write_report(folder: str) -> Written:
    """Writes report.md, report.html and figures/ into the folder of a study, each file whole or not at all.

    Raises:
      InputError: it holds no study, or cannot be written.
    """
    study = counted.load(folder)
    compared = comparisons.compared(study)
    problems = checks.problems(study, compared)
    made = sections(study, compared, problems)
    title = f"Accuracy study {study.plan.name}"
    files: dict[pathlib.Path, str | bytes] = {}
    place = pathlib.Path(folder)
    for picture in blocks.pictures(made):
        name = place / blocks.FIGURES / picture.name
        files[name.with_name(name.name + ".svg")] = picture.plot.svg.rstrip() + "\n"
        files[name.with_name(name.name + ".png")] = picture.plot.png or b""
    files[place / MARKDOWN] = blocks.markdown(title, made)
    files[place / PAGE] = blocks.page(title, made)
    try:
        (place / blocks.FIGURES).mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{place / blocks.FIGURES}: cannot be made: {error.strerror}; make {folder} writable, "
            "with nothing of this name in it but a folder"
        ) from error
    _remove_old(place / blocks.FIGURES, {path.name for path in files})
    for path, content in files.items():
        write(str(path), content)
    return Written(tuple(files), (*comparisons.verdict_lines(compared), *clicks.verdicts(study)), tuple(problems))


def _remove_old(folder: pathlib.Path, names: set[str]) -> None:
    """Figures of an earlier report that this one does not have would be taken for its own."""
    for path in folder.iterdir():
        if path.suffix in (".png", ".svg") and path.name not in names:
            with contextlib.suppress(OSError):
                path.unlink()
