"""Server-sent events out of bytes, in whatever pieces they come.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. Only the data of an
event is kept; its name, id and comments are passed over.
"""

from typing import Final

MAX_EVENT_BYTES: Final = 1 << 22
_BOM = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """An event that grows without end."""


class EventSplitter:
    """Feed it bytes, get the data of each event that they complete."""

    def __init__(self) -> None:
        self._tail = b""
        self._began = False

    def feed(self, data: bytes) -> list[bytes]:
        """Raises :class:`EventTooLong` where an event passes :data:`MAX_EVENT_BYTES`."""
        if self._tail:
            data = self._tail + data
        if not self._began:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._tail = data
                return []
            data = data.removeprefix(_BOM)
            self._began = True
        held = b""
        if b"\r" in data:  # JSON escapes it, so it ends lines here
            if data.endswith(b"\r"):  # perhaps half of a line's end
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        parts = data.split(b"\n\n")
        self._tail = parts.pop() + held
        if len(self._tail) > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")
        found = []
        for part in parts:
            if part.startswith(b"data: ") and b"\n" not in part:  # nearly all there are
                found.append(part[6:])
            elif (several := _data_of(part)) is not None:
                found.append(several)
        return found


def _data_of(part: bytes) -> bytes | None:
    values = []
    for line in part.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" "))
    return b"\n".join(values) if values else None
