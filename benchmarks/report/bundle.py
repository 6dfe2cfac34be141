"""What a published table needs to be defended, in one archive: records, logs, configurations, hashes and the commit.

    MANIFEST.json      SHA-256 of every other file, the commit of the tree that packed it and those that were measured
    results/...        the folder of results
    configs/...        the definitions of the benchmarks

The same files give the same bytes, whenever and by whomever they are packed.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report.rows import summarise
from benchmarks.report.sources import load
from data import whole_files
from data.errors import InputError
from trainer import machine

MANIFEST = "MANIFEST.json"
FORMAT = 1

_ROOT = Path(__file__).resolve().parents[2]
_KEPT = (".csv", ".html", ".json", ".jsonl", ".log", ".md", ".txt", ".yaml")


def pack(folder: str, output: str, *, root: Path = _ROOT) -> str:
    """Writes the bundle of a folder of results, whole or not at all; returns a line that says what is in it.

    Hidden files, links, files that are neither text nor tables, such as checkpoints, and what cannot be read as one of
    these stay out; the manifest names them.

    Args:
      folder: with records or logs of one machine.
      output: path of the archive, .tar.gz.
      root: of the source tree, for its commit and benchmarks/configs.

    Raises:
      InputError: the folder has no results or those of several machines, or a file cannot be read or written.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: not a folder; name the folder of results that is to be packed")
    loaded = load([folder])
    summary = summarise(loaded.results, folder)
    commit, dirty = machine.git_state(root)
    files, left_out = _collect(Path(folder), "results", Path(output))
    configs, _ = _collect(root / "benchmarks" / "configs", "configs", Path(output))
    files |= configs
    manifest = {
        "format": FORMAT,
        "commit": commit,
        "dirty": dirty,
        "measured_at": list(summary.commits),
        "problems": list(loaded.problems),
        "left_out": left_out,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())},
    }
    text = json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    whole_files.write(output, _archive({MANIFEST: text.encode(), **dict(sorted(files.items()))}))
    more = f", {len(left_out)} left out" if left_out else ""
    return f"{output}: {len(files)} files{more}; {_state(manifest)}"


def verify(path: str) -> tuple[str, list[str]]:
    """Whether a bundle holds what its manifest says: a line about it, and a line for each file that differs.

    Raises:
      InputError: it cannot be read, or is not a bundle.
    """
    files, problems = _unpack(path)
    try:
        manifest = json.loads(files.pop(MANIFEST))
        hashes = dict(manifest["files"])
    except (KeyError, ValueError, TypeError, RecursionError):
        raise InputError(f"{path}: not a bundle: it has no readable {MANIFEST}; pack it again") from None
    if manifest.get("format") != FORMAT:
        raise InputError(f"{path}: a bundle of format {manifest.get('format')!r}; this program knows {FORMAT}")
    held = 0
    for name in sorted(hashes.keys() | files.keys()):
        if name not in files:
            problems.append(f"{path}: {name} is missing")
        elif name not in hashes:
            problems.append(f"{path}: {name} is not in the manifest")
        elif hashlib.sha256(files[name]).hexdigest() != hashes[name]:
            problems.append(f"{path}: {name} has another SHA-256 than the manifest says")
        else:
            held += 1
    return f"{path}: {held} of {len(hashes)} files are what the manifest says; {_state(manifest)}", problems


def _state(manifest: Mapping[str, Any]) -> str:
    commit, dirty = manifest.get("commit"), manifest.get("dirty")
    measured = ", ".join(map(str, manifest.get("measured_at") or [])) or "unknown"
    packed = f"{commit}{' WITH CHANGES' if dirty else ''}" if commit else "no commit"
    return f"measured at {measured}; packed at {packed}"


def _collect(folder: Path, inside: str, output: Path) -> tuple[dict[str, bytes], list[str]]:
    """Name in the archive -> content of the files below a folder, and the names of those that stay out."""
    found: dict[str, bytes] = {}
    left_out = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted([*names, *links]):
            path = Path(place) / name
            if path.resolve() == output.resolve():
                continue
            shown = f"{inside}/{path.relative_to(folder).as_posix()}"
            if name.startswith(".") or path.is_symlink() or not path.is_file() or path.suffix not in _KEPT:
                left_out.append(shown)
                continue
            try:
                found[shown] = path.read_bytes()
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}; a bundle must be whole") from error
    return found, left_out


def _archive(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    # Neither times nor owners nor the archive's own name.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _unpack(path: str) -> tuple[dict[str, bytes], list[str]]:
    files: dict[str, bytes] = {}
    problems = []
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    problems.append(f"{path}: {member.name} is not a plain file")
                elif member.name in files:
                    problems.append(f"{path}: {member.name} is in it twice")
                else:
                    files[member.name] = content.read()
    except (FileNotFoundError, PermissionError) as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; name a bundle") from error
    except IsADirectoryError as error:
        raise InputError(
            f"{path}: a folder, and no bundle; name the .tar.gz file that bundle --output has written"
        ) from error
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a whole bundle ({error}); fetch or pack it again") from error
    return files, problems
