"""The bytes of all bodies that are held at the same time.

Each body has a bound of its own, but as many of them as may wait are more than a machine has memory for. A body is held
from its first byte until its request has been decoded and, where it does not stream, answered: about as long as what
was decoded of it is held, too.
"""

from types import TracebackType
from typing import Final, Self

from ..errors import Overloaded

FREE_BYTES: Final = 64 << 10
"""Of each body, not counted: who fills the room with large ones must not keep out the small ones of others."""
_RETRY_SECONDS: Final = 2


class BodiesFull(Overloaded):
    """The rest of the body is not read."""

    def __init__(self, held: int) -> None:
        message = f"Bodies of {held} bytes are being worked on, as many as this server holds; try again later."
        super().__init__(message, "bodies_full", _RETRY_SECONDS)

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "connection": "close"}


class HeldBodies:
    """Owned by the server's state; only its shares change it."""

    def __init__(self, most: int) -> None:
        """``most`` in bytes; 0 is no bound."""
        self._most = most
        self.bytes = 0
        """Held, less what is free of each."""

    def share(self) -> "BodyShare":
        """For one body, until the block around it ends."""
        return BodyShare(self)

    def _change(self, by: int, own: int) -> None:
        # a body that is alone always has room: otherwise one larger than all of it never would
        if by > 0 and self._most and self.bytes + by > self._most and self.bytes > own:
            raise BodiesFull(self.bytes)
        self.bytes += by


class BodyShare:
    """What one body takes up."""

    __slots__ = ("_bodies", "_counted", "_size")

    def __init__(self, bodies: HeldBodies) -> None:
        self._bodies = bodies
        self._size = 0
        self._counted = 0

    def add(self, size: int) -> int:
        """Counts so many more bytes; returns how many the body has by now. Raises BodiesFull."""
        self._size += size
        counted = max(0, self._size - FREE_BYTES)
        self._bodies._change(counted - self._counted, self._counted)
        self._counted = counted
        return self._size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bodies._change(-self._counted, 0)
        self._counted = 0
