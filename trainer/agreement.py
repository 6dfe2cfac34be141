"""How ranks act together where one of them may find something wrong. Without TensorFlow, so that files need none."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from data.errors import InputError

T = TypeVar("T")

_BECAUSE = "stopped because of rank "


class Ranks(Protocol):
    """What agreeing needs of a communicator (trainer.distributed)."""

    rank: int

    def allgather_object(self, value: Any) -> list[Any]:
        """Each rank's value, by rank."""


class Alone:
    """One process that asks nobody."""

    rank = 0

    def allgather_object(self, value: Any) -> list[Any]:
        return [value]


def agree(ranks: Ranks, action: Callable[[], T]) -> T:
    """Runs `action` on every rank; bad input on any of them becomes InputError on all of them.

    Without this a rank that finds a bad file leaves while the others wait for it in the next collective.
    """
    error, result = None, None
    try:
        result = action()
    except InputError as caught:
        error = caught
    messages = ranks.allgather_object(None if error is None else str(error))
    if error is not None:
        raise error
    for rank, message in enumerate(messages):
        if message is not None:
            raise InputError(f"{_BECAUSE}{rank}: {message}")
    return result


def is_because_of_another(message: str) -> bool:
    """Whether an InputError of `agree` says what another rank found."""
    return message.startswith(_BECAUSE)


def from_rank_0(ranks: Ranks, action: Callable[[], T]) -> T:
    """Runs `action` on rank 0 alone; its result, or the InputError, is that of every rank."""
    result = agree(ranks, action if ranks.rank == 0 else lambda: None)
    return ranks.allgather_object(result)[0]
