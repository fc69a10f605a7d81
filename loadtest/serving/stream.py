"""One request as it comes back: when each chunk of output arrived, how many tokens it held, how it ended.

waiting ── head 200, event stream ──▶ streaming ── [DONE] ──▶ over
   │                                      │
   └── any other head, error, silence ────┴──▶ over, with an error
"""

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Final

import msgspec

from .api import Event, Usage, error_text
from .http import Response
from .meter import Meter

_ERROR_BYTES: Final = 1 << 16
_DONE: Final = b"[DONE]"


class EventSplitter:
    """Server-sent events out of bytes, in whatever pieces they come: feed it, and get the data of each event that is
    complete.

    Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. Names, ids and
    comments of events are passed over.
    """

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


class Stream(Response):
    """Fed by a connection; holds numbers, and the text only where ``keep_text`` asks for it."""

    def __init__(
        self, read: Callable[[bytes], Event], meter: Meter, keep_text: bool = False, *, needs_done: bool = True
    ) -> None:
        """Made right before the request is sent.

        ``read`` is an API's; ``needs_done``: a stream with output that ends without ``[DONE]`` is truncated.
        """
        super().__init__()
        self.began = self.ended = perf_counter()
        self.arrivals: list[float] = []
        """When each chunk of output was read, by ``time.perf_counter()``."""
        self.chunk_tokens: list[int] = []
        """Of each chunk after the first."""
        self.tokens = 0
        """Output tokens counted chunk by chunk."""
        self.finish: str | None = None
        self.usage: Usage | None = None
        self._streams = False
        self._read = read
        self._meter = meter
        self._needs_done = needs_done
        self._splitter = EventSplitter()
        self._text: list[str] | None = [] if keep_text else None

    @property
    def ttft(self) -> float | None:
        """Seconds to the first output; None where none came."""
        return self.arrivals[0] - self.began if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive chunks, 0 for those that one read brought."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    @property
    def text(self) -> str:
        """The answer, where ``keep_text`` was asked for."""
        return "".join(self._text or ())

    def head(self, status: int, content_type: str, server: str, request_id: str) -> None:
        super().head(status, content_type, server, request_id)
        self._streams = status == 200 and not content_type.startswith("application/json")

    def feed(self, data: bytes, now: float) -> None:
        if not self._streams:
            self.body += data[: _ERROR_BYTES - len(self.body)]
        elif not self.over:
            before = self.tokens
            try:
                self._take(self._splitter.feed(data), now)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self.fail("malformed", f"an event that is not the API's: {error}")
            self._meter.tokens += self.tokens - before

    def end(self, now: float) -> None:
        if self._streams and (self._needs_done or not self.arrivals):
            self.fail("truncated", "the stream ended before [DONE]")
        elif self.status and not self._streams:
            self.fail(f"http {self.status}", error_text(self.body))
        super().end(now)

    def _take(self, events: list[bytes], now: float) -> None:
        arrivals, read = self.arrivals, self._read
        for data in events:
            if data == _DONE:
                return super().end(now)
            event = read(data)
            if event.error is not None:
                return self.fail("stream", event.error)
            if event.finish is not None:
                self.finish = event.finish
            tokens = event.tokens
            if event.usage is not None:
                self.usage = event.usage
                if tokens:  # usage in every chunk (continuous_usage_stats) tells how many tokens it holds
                    tokens = max(tokens, event.usage.completion_tokens - self.tokens)
            if not tokens:
                continue
            self.tokens += tokens
            if not arrivals:
                self._meter.ttft.append(now - self.began)
            else:
                self.chunk_tokens.append(tokens)
                if gap := now - arrivals[-1]:
                    self._meter.gaps.append(gap)
            arrivals.append(now)
            if self._text is not None:
                self._text.append(event.text)
        return None
