"""One writer at a time in a folder of results."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from data.errors import InputError

_LOCK_FILE = "lock"


@contextlib.contextmanager
def held(folder: str, who: str) -> Iterator[int]:
    """Holds the folder, which is made if it is not there.

    Args:
      folder: of results.
      who: what may be running there already, for the message.

    Returns:
      The file descriptor of the lock. Processes that inherit it hold the lock, too.

    Raises:
      InputError: it is held by somebody else, or cannot be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        lock = os.open(os.path.join(folder, _LOCK_FILE), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}; name another --results_dir") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{folder}: {who} runs there already, or processes of one that was killed: wait for it, or end it"
            ) from error
        yield lock
    finally:
        os.close(lock)
