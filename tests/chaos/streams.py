"""One stream of completions or chat as its client gets it: every token by its id, and when it came."""

from time import perf_counter
from typing import Final

import msgspec

from stentor.loadtest.serving.http import Response
from stentor.loadtest.serving.stream import EventSplitter

_DONE: Final = b"[DONE]"


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _Call(msgspec.Struct):
    index: int
    function: _Function = msgspec.field(default_factory=_Function)


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] = []


class _Piece(msgspec.Struct):
    index: int
    text: str = ""
    delta: _Delta | None = None
    token_ids: list[int] = []
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Piece] = []
    error: dict[str, object] | None = None


class Choice(msgspec.Struct):
    """What came of one choice."""

    tokens: list[int] = []
    text: str = ""
    reason: str | None = None
    calls: list[list[str]] = []
    """Name and arguments of each call of a tool."""


_read_event = msgspec.json.Decoder(_Event).decode


class TokenStream(Response):
    """For :class:`stentor.loadtest.serving.http.HttpClient`. ``error`` says what went wrong, if anything did."""

    def __init__(self, choices: int = 1) -> None:
        super().__init__()
        self.choices = [Choice() for _ in range(choices)]
        self.began = self.ended = perf_counter()
        self.arrivals: list[float] = []
        """When tokens came, by ``time.perf_counter()``."""
        self._splitter = EventSplitter()

    def feed(self, data: bytes, now: float) -> None:
        if self.status != 200:
            self.body += data[:2000]
            return
        events = self._splitter.feed(data)
        if events:
            self.arrivals.append(now)
        for event in events:
            if self.over:
                self.error = self.error or f"after the end came {event[:200]!r}"
            elif event == _DONE:
                self._end(now)
            else:
                self._take(event)

    def end(self, now: float) -> None:
        if self.status and self.status != 200:
            self.fail(f"status {self.status}", self.body.decode(errors="replace"))
        else:
            self.fail("truncated", "the connection ended before [DONE]")

    def fail(self, kind: str, detail: str) -> None:
        if not self.over:
            self.error = self.error or f"{kind}: {detail}"
            self.over = True
            self.ended = perf_counter()

    def _take(self, event: bytes) -> None:
        read = _read_event(event)
        if read.error is not None:
            self.error = self.error or f"an error event: {read.error}"
        for piece in read.choices:
            choice = self.choices[piece.index]
            if choice.reason is not None:
                self.error = self.error or f"choice {piece.index} went on after its end: {event[:200]!r}"
            choice.tokens += piece.token_ids
            choice.text += piece.text
            if piece.delta is not None:
                self._take_delta(choice, piece.delta)
            choice.reason = piece.finish_reason

    def _take_delta(self, choice: Choice, delta: _Delta) -> None:
        choice.text += delta.content or ""
        for call in delta.tool_calls:
            if call.index == len(choice.calls):
                choice.calls.append(["", ""])
            if call.index != len(choice.calls) - 1:
                self.error = self.error or f"a call of index {call.index} among {len(choice.calls)}"
                return
            choice.calls[-1][0] += call.function.name
            choice.calls[-1][1] += call.function.arguments

    def _end(self, now: float) -> None:
        self.over = True
        self.ended = now
        if self.error is None and any(choice.reason is None for choice in self.choices):
            self.error = "[DONE] came before every choice had its finish_reason"
