"""Server-sent events out of bytes, in whatever pieces they come.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. Only the data of an
event is kept; its name, id and comments are passed over.
"""


class EventSplitter:
    """Feed it bytes, get the data of each event that they complete."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self._tail:
            data = self._tail + data
        held = b""
        if b"\r" in data:  # JSON escapes it, so it ends lines here
            if data.endswith(b"\r"):  # perhaps half of a line's end
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        parts = data.split(b"\n\n")
        self._tail = parts.pop() + held
        found = []
        for part in parts:
            if part.startswith(b"data: ") and b"\n" not in part:  # nearly all there are
                found.append(part[6:])
            elif values := [line[5:].removeprefix(b" ") for line in part.split(b"\n") if line.startswith(b"data:")]:
                found.append(b"\n".join(values))
        return found
