"""The workers that compute each step together, as a layer sees them: what all add up, and what one tells the others.

They find each other by a memory file without a name, which the engine makes for each group and passes to its members;
connections of gloo are on the loopback interface, at ports that the system chooses.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from torch import distributed

_distributed: Final[Any] = distributed
"""Its stubs lack the options of process groups."""

WAIT_SECONDS: Final = 600.0
"""For another to come to a collective. The engine ends all when one dies or hangs; this is for when it does not."""


class RankLost(Exception):
    """Another of the group is gone, or has not come: nothing more can be computed."""


class RankGroup:
    """This worker among those of its group. All call the same in the same order; raises :class:`RankLost`."""

    def __init__(self, rank: int, size: int, meeting_fd: int, device: torch.device) -> None:
        """Waits for the others."""
        self.rank, self.size = rank, size
        self._device = device
        self._meeting = os.dup(meeting_fd)
        self._group = _joined(lambda: _meet(rank, size, self._meeting, device))

    def __del__(self) -> None:
        """torch opens the file once more when the group ends, by its number: behind it must still be this file. With
        that of a socket torch aborts the process."""
        self._group = None
        os.close(self._meeting)

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place, the same to the bit on each; ``x`` is contiguous."""
        _joined(lambda: self._group.allreduce([x]).wait())
        return x

    def tell_(self, x: torch.Tensor) -> torch.Tensor:
        """What the first rank has, in place."""
        _joined(lambda: self._group.broadcast(x, 0).wait())
        return x

    def told(self, values: list[int]) -> list[int]:
        """The first rank's, as many as all have."""
        found: list[int] = self.tell_(torch.tensor(values, dtype=torch.int64, device=self._device)).tolist()
        return found

    def least(self, value: int) -> int:
        """Of those that the ranks have."""
        every = torch.zeros(self.size, dtype=torch.int64, device=self._device)
        every[self.rank] = value
        return int(self.sum_(every).min())


def _meet(rank: int, size: int, meeting_fd: int, device: torch.device) -> Any:
    """Of torch's classes of process groups; not the one that a process may have by default: several may be in one."""
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
    except RuntimeError as error:  # torch has no class of its own for one that has gone
        raise RankLost(f"another worker of the group was lost: {str(error).splitlines()[0]}") from error
