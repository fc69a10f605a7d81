"""Parses a choice's text: content, reasoning and tool calls, with each token counted by its kind.

Before each token the parser decides how the token counts, so that the count does not depend on how many tokens came
together.
"""

from stentor.protocols.ipc.deltas import Delta, Reasoning, Text, ToolCallArguments, ToolCallEnd, ToolCallStart
from stentor.protocols.ipc.steps import TokenLogprobs

from ...parsing.interface import CallArguments, CallEnd, CallStart, Content, Parser, Piece, Thought


class DeltaWriter:
    """Appends a choice's pieces to the deltas of a batch; neighbours of one kind become one delta.

    Behind a text, tokens that made nothing final follow in a delta of their own, as they do in batches of one token:
    they may write a call, and be no part of the text.
    """

    __slots__ = ("_call", "_index", "_logprobs", "_out", "_parts", "_spoken", "_thought", "_tokens")

    def __init__(self, index: int, call: int, out: list[Delta]) -> None:
        """``call``: tool calls that have begun before."""
        self._index = index
        self._call = call
        self._out = out
        self._thought = False
        self._parts: list[str] | None = None
        """Parts of the current text or reasoning; None without one."""
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None
        self._spoken = 0
        """Tokens up to the last one that made text final."""

    @property
    def calls(self) -> int:
        return self._call

    def token(self, token: int, logprob: TokenLogprobs | None, *, thought: bool) -> None:
        self._carrier(thought)
        self._tokens.append(token)
        if logprob is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs.append(logprob)

    def pieces(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            match piece:
                case Content(text):
                    self._say(False, text)
                case Thought(text):
                    self._say(True, text)
                case CallStart(name, id):
                    self.flush()
                    self._out.append(ToolCallStart(self._index, self._call, name, id))
                    self._call += 1
                case CallArguments(text):
                    self._arguments(text)
                case CallEnd():
                    self.flush()
                    self._out.append(ToolCallEnd(self._index, self._call - 1))

    def flush(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            self._tell("".join(parts), len(self._tokens) if self._thought else self._spoken)
            self._tell("", len(self._tokens))

    def _say(self, thought: bool, text: str) -> None:
        parts = self._carrier(thought)
        if self._call and not parts:
            self._tell("", len(self._tokens) - 1)
        parts.append(text)
        self._spoken = len(self._tokens)

    def _tell(self, text: str, count: int) -> None:
        """Adds a delta with ``text`` and the first ``count`` tokens, if there is either."""
        if not text and count <= 0:
            return
        told, self._tokens = self._tokens[:count], self._tokens[count:]
        logprobs = self._logprobs
        if logprobs is not None:
            logprobs, self._logprobs = logprobs[:count], logprobs[count:]
        kind = Reasoning if self._thought else Text
        self._out.append(kind(self._index, text, told, logprobs))

    def _carrier(self, thought: bool) -> list[str]:
        if self._parts is None or self._thought is not thought:
            self.flush()
            self._parts, self._tokens, self._logprobs, self._spoken = [], [], None, 0
            self._thought = thought
        return self._parts

    def _arguments(self, text: str) -> None:
        self.flush()
        last = self._out[-1] if self._out else None
        if isinstance(last, ToolCallArguments) and last.index == self._index:
            self._out[-1] = ToolCallArguments(self._index, last.call, last.text + text)
        else:
            self._out.append(ToolCallArguments(self._index, self._call - 1, text))


class Parsed:
    """The parsed output of one choice, after detokenisation and stop strings."""

    __slots__ = ("_calls", "_index", "_parser")

    def __init__(self, index: int, parser: Parser) -> None:
        self._index = index
        self._parser = parser
        self._calls = 0

    def writer(self, out: list[Delta]) -> DeltaWriter:
        """A writer of the deltas of one batch to ``out``; give it to :meth:`end` at the end of the batch."""
        return DeltaWriter(self._index, self._calls, out)

    def push(self, token: int, logprob: TokenLogprobs | None, text: str, writer: DeltaWriter) -> None:
        """Take one token, with the text that it made final; write the deltas."""
        writer.token(token, logprob, thought=self._parser.thinking)
        if text:
            writer.pieces(self._parser.push(text))

    def push_alone(self, tokens: list[int], logprobs: list[TokenLogprobs] | None, text: str, out: list[Delta]) -> None:
        """Take one token as :meth:`push` does, where it is the only one of its batch: appends the deltas to ``out``."""
        thought = self._parser.thinking
        pieces = self._parser.push(text) if text else []
        if not pieces:
            out.append((Reasoning if thought else Text)(self._index, "", tokens, logprobs))
            return
        if len(pieces) == 1 and type(piece := pieces[0]) is (Thought if thought else Content):
            out.append((Reasoning if thought else Text)(self._index, piece.text, tokens, logprobs))
            return
        writer = self.writer(out)
        writer.token(tokens[0], None if logprobs is None else logprobs[0], thought=thought)
        writer.pieces(pieces)
        self.end(writer)

    def finish(self, text: str, out: list[Delta], *, cut: bool) -> None:
        """Adds the last text, and the parser's rest; call once. ``cut``: the output was truncated."""
        writer = self.writer(out)
        if text:
            writer.pieces(self._parser.push(text))
        writer.pieces(self._parser.finish(cut=cut))
        self.end(writer)

    def end(self, writer: DeltaWriter) -> None:
        writer.flush()
        self._calls = writer.calls
