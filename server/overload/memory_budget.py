"""One budget for the memory of clients' requests, counted before it is used.

::

    MemoryBudget       of the server
      MemoryShare      of one request or connection: its bytes are released when it is closed

It counts memory, not bytes on the wire: a body with its decoded form, prompts as lists of tokens, items loaded from the
store, unread messages of a WebSocket. Unknown amounts are estimated from above by the constants below, which were
measured with CPython 3.11 on 64 bits.
"""

import gc
import math
from collections.abc import Callable
from typing import Final, Self

import anyio

from stentor.engine.processes.freed_memory import GROWN, give_back, resident_bytes
from stentor.engine.worker.memory import memory_limit
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.sampling import SamplingParams

from ..common.errors import Overloaded

FREE_BYTES: Final = 64 << 10
"""Bytes of a request's share that are not counted, so that an ordinary request is nearly free: 128 MiB for 2,048
waiting ones."""
RESERVED: Final = 8
"""One part in this many of the budget is reserved for small shares, so that large ones cannot block others."""
SMALL: Final = 128
"""A share is small up to this part of the budget."""
TOKEN_BYTES: Final = 100
"""Bytes for a prompt token: 40 in a list of the server, 40 in the engine's, the rest for frames between them."""
STORED_FACTOR: Final = 6
"""Memory factor of stored JSON: as read, as decoded, and as the prompt, in which a character takes 4 bytes."""

_LARGEST: Final = 1 << 30
_LEAST: Final = 64 << 20
_PART_OF_MEMORY: Final = 4
_RETRY_SECONDS: Final = 2
_TUPLE_BYTES: Final = 56


class MemoryFull(Overloaded):
    """The budget is used up; the rest of the request is not read."""

    def __init__(self, held: int) -> None:
        message = f"{held} bytes are being held for requests, as many as this server holds; try again later."
        super().__init__(message, "memory_full", _RETRY_SECONDS)

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "connection": "close"}


class MemoryBudget:
    """Counts the bytes held for clients, and refuses those beyond a bound. Owned by the server's state and used on the
    event loop alone; only its shares change it."""

    def __init__(self, most: int) -> None:
        """``most`` in bytes; 0 is no bound."""
        self._most: float = most or math.inf
        self.bytes = 0
        """Counted bytes: held, less the free part of each share."""

    def share(self, free: int = FREE_BYTES) -> "MemoryShare":
        """A share until it is closed, or the block around it ends. Its first ``free`` bytes are not counted."""
        return MemoryShare(self, free)

    def _change(self, by: int, own: int, field: str | None) -> None:
        if by > 0:
            small = own + by <= self._most / SMALL
            room = self._most * (1 if small else 1 - 1 / RESERVED)
            if own + by > room:
                raise _never(own + by, int(room), field)
            if self.bytes + by > room:
                raise MemoryFull(self.bytes)
        self.bytes += by


class MemoryShare:
    """Memory of one request or connection."""

    __slots__ = ("_budget", "_closed", "_counted", "_free", "size")

    def __init__(self, budget: MemoryBudget, free: int) -> None:
        self._budget = budget
        self._free = free
        self._closed = False
        self._counted = 0
        self.size = 0
        """All its bytes, the free part included."""

    def add(self, size: int, field: str | None = None) -> int:
        """Counts ``size`` more bytes; returns the bytes of the share.

        Raises MemoryFull, or BadRequest (413) naming ``field`` if they never fit. A share that has been closed
        counts nothing.
        """
        if self._closed:
            return self.size
        counted = max(0, self.size + size - self._free)
        self._budget._change(counted - self._counted, self._counted, field)
        self.size += size
        self._counted = counted
        return self.size

    def set(self, size: int) -> None:
        """Count ``size`` bytes in all, instead of those so far. Raises as :meth:`add`."""
        self.add(size - self.size)

    def close(self) -> None:
        """May be called again."""
        self.set(0)
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def params_bytes(params: SamplingParams) -> int:
    """Bytes of the large fields of sampling parameters, in the server and again in the engine."""
    lists = (params.logit_bias, params.allowed_token_ids or (), params.banned_token_ids, params.logprob_token_ids)
    entries = sum(map(len, lists)) + (0 if params.no_repeat is None else len(params.no_repeat.exempt))
    sequences = sum(map(len, params.banned_sequences))
    return TOKEN_BYTES * (entries + sequences) + 2 * _TUPLE_BYTES * len(params.banned_sequences)


def default_budget(memory: int | None = None) -> int:
    """A quarter of the memory that there is, and no more than 1 GiB: the rest is for weights, KV cache and audio."""
    memory = memory_limit() if memory is None else memory
    return max(_LEAST, min(_LARGEST, memory // _PART_OF_MEMORY))


def _never(wanted: int, most: int, field: str | None) -> BadRequest:
    what = f"`{field}`" if field else "The request"
    return BadRequest(
        f"{what} takes some {wanted >> 20} MiB of memory here, and this server lets one request hold {most >> 20} MiB; "
        "send less.",
        field,
        "request_too_large",
        413,
    )


LOOK_SECONDS: Final = 5.0
_PATIENT_LOOKS: Final = 12


class Trimmer:
    """Trims this process after it has grown, and once a minute while it stays large, since memory may have been freed
    since."""

    def __init__(self, resident: Callable[[], int] = resident_bytes, give_back: Callable[[], None] = give_back) -> None:
        self._resident = resident
        self._give_back = give_back
        self._least = self._accepted = resident()
        self._looks = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            if self.is_due():
                await anyio.to_thread.run_sync(self.trim)

    def is_due(self) -> bool:
        """To be called every :data:`LOOK_SECONDS`."""
        self._looks += 1
        resident = self._resident()
        self._least = min(self._least, resident)
        patient = self._looks % _PATIENT_LOOKS == 0
        return resident >= (self._least if patient else self._accepted) + GROWN

    def trim(self) -> None:
        gc.collect()  # frees cycles, which an idle server would keep for hours
        self._give_back()
        self._accepted = self._resident()
