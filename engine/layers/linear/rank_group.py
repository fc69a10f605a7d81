"""Collectives of the workers that split a model.

They find each other by an anonymous memory file, which the engine makes for each group and passes to its members.
gloo's connections use the loopback interface, at ports chosen by the system.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from torch import distributed

_distributed: Final[Any] = distributed
"""torch's stubs lack the options of process groups."""

WAIT_SECONDS: Final = 600.0
"""Limit for a collective. The engine ends all workers when one dies or hangs; this is a fallback."""


class RankLost(Exception):
    """Another rank is gone or has not come: nothing more can be computed."""


class RankGroup:
    """This worker in its group. All ranks must make the same calls in the same order; they raise :class:`RankLost`."""

    def __init__(self, rank: int, size: int, meeting_fd: int, device: torch.device) -> None:
        """Wait for the other ranks."""
        self.rank, self.size = rank, size
        self._device = device
        self._meeting = os.dup(meeting_fd)
        self._group = _joined(lambda: _meet(rank, size, self._meeting, device))

    def __del__(self) -> None:
        """Close the file last: torch opens it once more by number when the group ends, and aborts if that is a
        socket."""
        self._group = None
        os.close(self._meeting)

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """Sum x over all ranks, in place, with the same bits on each; x must be contiguous."""
        _joined(lambda: self._group.allreduce([x]).wait())
        return x

    def broadcast_(self, x: torch.Tensor, rank: int = 0) -> torch.Tensor:
        """Copy one rank's x to all ranks, in place; x must be contiguous."""
        _joined(lambda: self._group.broadcast(x, rank).wait())
        return x

    def broadcast_list(self, values: list[int]) -> list[int]:
        """Rank 0's values; all ranks pass equally many."""
        found: list[int] = self.broadcast_(torch.tensor(values, dtype=torch.int64, device=self._device)).tolist()
        return found

    def least(self, value: int) -> int:
        """The least of the ranks' values."""
        every = torch.zeros(self.size, dtype=torch.int64, device=self._device)
        every[self.rank] = value
        return int(self.sum_(every).min())


def _meet(rank: int, size: int, meeting_fd: int, device: torch.device) -> Any:
    """A process group of torch, but not the default one, since a process may have several."""
    wait = timedelta(seconds=WAIT_SECONDS)
    store = _distributed.FileStore(f"/proc/self/fd/{meeting_fd}", size)
    store.set_timeout(wait)
    if device.type == "cuda":
        options = _distributed.ProcessGroupNCCL.Options()
        options._timeout = wait
        return _distributed.ProcessGroupNCCL(store, rank, size, options)
    options = _distributed.ProcessGroupGloo._Options()
    options._devices = [_distributed.ProcessGroupGloo.create_device(interface="lo")]
    options._timeout = wait
    return _distributed.ProcessGroupGloo(store, rank, size, options)


T = TypeVar("T")


def _joined(collective: Callable[[], T]) -> T:
    try:
        return collective()
    except RuntimeError as error:  # torch has no error class for a lost peer
        raise RankLost(f"another worker of the group was lost: {str(error).splitlines()[0]}") from error
