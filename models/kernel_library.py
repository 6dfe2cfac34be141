"""Where the built kernels of models/ops are kept. Without TensorFlow, for those who only ask whether they are there."""

import hashlib
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent / "ops"


def sources(folder: pathlib.Path = FOLDER) -> list[pathlib.Path]:
    """The files that are compiled."""
    return sorted(folder.glob("*.cc"))


def library_path(tensorflow_version: str, folder: pathlib.Path = FOLDER) -> pathlib.Path:
    """The library of these sources for a TensorFlow, built or not: in Python's own environment."""
    files = [*sources(folder), *sorted(folder.glob("*.h"))]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    return pathlib.Path(sys.prefix) / "lib" / "recsys-harness" / f"ops-tf{tensorflow_version}-{key}.so"
