"""One request as it comes back: when each chunk of output arrived, how many tokens it held, how it ended.

waiting ── head 200, event stream ──▶ streaming ── [DONE] ──▶ done
   │                                      │
   └── any other head, error, silence ────┴──▶ failed
"""

from enum import Enum
from itertools import pairwise
from time import perf_counter
from typing import Final

import msgspec

from .api import Api, Event, Usage, error_text, one_line
from .meter import Meter
from .sse import EventSplitter, EventTooLong

MAX_WHOLE_BYTES: Final = 1 << 24
MAX_CHUNKS: Final = 1 << 20
_ERROR_BYTES: Final = 1 << 16
_DONE: Final = b"[DONE]"


class State(Enum):
    WAITING = "waiting"
    """nothing has come"""
    STREAMING = "streaming"
    """events come"""
    WHOLE = "whole"
    """an answer in one piece comes"""
    REFUSED = "refused"
    """the body of a status other than 200 comes"""
    DONE = "done"
    FAILED = "failed"


class Stream:
    """Fed by a connection; holds numbers, and the text only where ``keep_text`` asks for it."""

    def __init__(self, api: Api, meter: Meter, keep_text: bool = False, *, needs_done: bool = True) -> None:
        """``needs_done``: a stream with output that ends without ``[DONE]`` is truncated."""
        self.state = State.WAITING
        self.error: str | None = None
        self.began = self.ended = perf_counter()
        self.arrivals: list[float] = []
        """When each chunk of output was read, by ``time.perf_counter()``."""
        self.chunk_tokens: list[int] = []
        self.tokens = 0
        """Output tokens counted chunk by chunk."""
        self.finish: str | None = None
        self.usage: Usage | None = None
        self.server = ""
        self.request_id = ""
        """Its ``X-Request-Id`` header, by which the server's log names it."""
        self._status = 0
        self._api = api
        self._read = api.read
        self._meter = meter
        self._needs_done = needs_done
        self._splitter = EventSplitter()
        self._text: list[str] | None = [] if keep_text else None
        self._body = bytearray()

    @property
    def first(self) -> float | None:
        """When the first output was read."""
        return self.arrivals[0] if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive chunks, 0 for those that one read brought."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]

    @property
    def text(self) -> str:
        """The answer, where ``keep_text`` was asked for."""
        return "".join(self._text or ())

    @property
    def output_tokens(self) -> int:
        """The server's count, or else ours."""
        return self.usage.completion_tokens if self.usage is not None else self.tokens

    @property
    def over(self) -> bool:
        return self.state in (State.DONE, State.FAILED)

    def begin(self) -> None:
        """Called right before the request is sent."""
        self.began = self.ended = perf_counter()

    def head(self, status: int, content_type: str, server: str, request_id: str) -> None:
        """The answer's head has come."""
        self.server = server
        self.request_id = request_id
        self._status = status
        if status != 200:
            self.state = State.REFUSED
        elif content_type.startswith("application/json"):
            self.state = State.WHOLE
        else:
            self.state = State.STREAMING

    def feed(self, data: bytes, now: float) -> None:
        """A piece of the body, read at ``now``. After the end it is passed over."""
        if self.state is State.STREAMING:
            try:
                self._take(self._splitter.feed(data), now)
            except EventTooLong as error:
                self.fail("malformed", str(error))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self.fail("malformed", f"an event that is not the API's: {error}")
        elif self.state is State.WHOLE:
            self._body += data
            if len(self._body) > MAX_WHOLE_BYTES:
                self.fail("malformed", f"an answer of more than {MAX_WHOLE_BYTES >> 20} MiB")
        elif self.state is State.REFUSED:
            self._body += data[: _ERROR_BYTES - len(self._body)]

    def end(self, now: float) -> None:
        """The body is complete, or the connection closed: the last that a connection says."""
        if self.state is State.WHOLE:
            self._take_whole(now)
        elif self.state is State.REFUSED:
            self.fail(f"http {self._status}", error_text(bytes(self._body)))
        elif self.state is State.STREAMING:
            if self._needs_done or not self.arrivals:
                self.fail("truncated", "the stream ended before [DONE]")
            else:
                self.state, self.ended = State.DONE, now
        elif self.state is State.WAITING:
            self.fail("connection", "closed before an answer came")

    def fail(self, kind: str, detail: str) -> None:
        """Ends it with an error, unless it has ended."""
        if not self.over:
            self.state = State.FAILED
            self.error = one_line(f"{kind}: {detail}")
            self.ended = perf_counter()
            self._body.clear()

    def _take(self, events: list[bytes], now: float) -> None:
        before = self.tokens
        for data in events:
            if data == _DONE:
                self.state = State.DONE
                self.ended = now
                break
            event = self._read(data)
            if event.error is not None:
                self.fail("stream", event.error)
                break
            if event.finish is not None:
                self.finish = event.finish
            if event.usage is not None:
                self._count(event, event.usage)
            if event.tokens:
                self._chunk(event.tokens, now)
                if self._text is not None:
                    self._text.append(event.text)
        if self.tokens != before:
            self._meter.read(self.tokens - before)
            if len(self.arrivals) > MAX_CHUNKS:
                self.fail("malformed", f"more than {MAX_CHUNKS} chunks in one answer")

    def _count(self, event: Event, usage: Usage) -> None:
        """Usage in every chunk (``continuous_usage_stats``) tells how many tokens a chunk holds."""
        self.usage = usage
        if event.tokens:
            event.tokens = max(event.tokens, usage.completion_tokens - self.tokens)

    def _chunk(self, tokens: int, now: float) -> None:
        self.tokens += tokens
        if self.arrivals:
            gap = now - self.arrivals[-1]
            self.chunk_tokens.append(tokens)
            if gap:
                self._meter.gap(gap)
        else:
            self._meter.first(now - self.began)
        self.arrivals.append(now)

    def _take_whole(self, now: float) -> None:
        try:
            event = self._api.read_whole(bytes(self._body))
        except msgspec.DecodeError as error:
            return self.fail("malformed", f"an answer that is not the API's: {error}")
        if event.error is not None:
            return self.fail("stream", event.error)
        self.finish, self.usage = event.finish, event.usage
        if event.tokens:
            self._chunk(event.tokens, now)
            self._meter.read(event.tokens)
            if self._text is not None:
                self._text.append(event.text)
        self.state = State.DONE
        self.ended = now
