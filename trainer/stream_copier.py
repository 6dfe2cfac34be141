"""The process behind a rank log: copies two pipes to a file and to its own standard output and error, until both end.

Run as a script with the descriptors of the pipes and of the file; imports nothing of the project, to start fast
anywhere.
"""

import os
import selectors
import signal
import sys
import time

_CHUNK_BYTES = 1 << 16


def copy(out_read: int, err_read: int, log: int) -> None:
    """Copies both pipes until all their writers have ended: to the log, and to this process's own descriptors 1 and 2.

    A destination that fails (a full disk, a terminal that has gone) is given up, and the other ones still get
    everything: no rank dies of a broken pipe.
    """
    selector = selectors.DefaultSelector()
    selector.register(out_read, selectors.EVENT_READ, 1)
    selector.register(err_read, selectors.EVENT_READ, 2)
    failed: set[int] = set()
    while selector.get_map():
        for key, _ in selector.select():
            chunk = os.read(key.fd, _CHUNK_BYTES)
            if not chunk:
                selector.unregister(key.fd)
            for destination in (log, key.data):
                if destination not in failed and not _write_all(destination, chunk):
                    failed.add(destination)


def _write_all(descriptor: int, data: bytes) -> bool:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # Whoever started us has made it non-blocking.
            time.sleep(0.01)
        except OSError:
            return False
    return True


if __name__ == "__main__":
    # It ends with the last writer and not before, whoever is told to stop.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    copy(*map(int, sys.argv[1:]))
