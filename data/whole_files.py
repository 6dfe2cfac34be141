"""Files that are there whole or not at all."""

import contextlib
import os

from data.errors import InputError


def write(path: str, content: str | bytes) -> None:
    """Writes a file so that a reader sees the old one or the whole new one, never a part. Text is UTF-8.

    Raises:
      InputError: it cannot be written.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; name one in a folder that can be written"
        ) from error
