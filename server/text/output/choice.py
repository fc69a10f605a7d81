"""One choice of a generation: its tokens in, its deltas out."""

from collections.abc import Sequence

from stentor.protocols.ipc.deltas import Delta, Text
from stentor.protocols.ipc.steps import TokenLogprobs

from ..tokenizers.detokenizer import Detokenizer
from .parsed import Parsed
from .stop_patterns import Matcher


class OutputChoice:
    """The text of one choice: detokenised, checked for stop strings and patterns, and parsed if there is a parser."""

    __slots__ = ("_detokenizer", "_ends", "_matcher", "_min_tokens", "_parsed", "index", "open", "produced")

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        matcher: Matcher | None,
        ends: frozenset[int],
        min_tokens: int,
        parsed: Parsed | None,
    ) -> None:
        self.index = index
        self.open = True
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._ends = ends
        """Tokens that end the choice and are no part of its text."""
        self._min_tokens = min_tokens
        self.produced = 0
        """Tokens that have been delivered."""
        self._parsed = parsed

    @property
    def matched(self) -> str | None:
        return None if self._matcher is None else self._matcher.matched

    @property
    def _armed(self) -> bool:
        """Whether the choice has its minimum of tokens and may end."""
        return not self._min_tokens or self.produced > self._min_tokens

    def push(self, tokens: list[int], logprobs: list[TokenLogprobs] | None, deltas: list[Delta]) -> None:
        """Takes the next tokens, up to the one that completes a stop string or a pattern."""
        if self._parsed is not None:
            self._push_parsed(tokens, logprobs, self._parsed, deltas)
            return
        if self._matcher is not None:
            deltas.append(self._push_watched(tokens, logprobs, self._matcher))
            return
        self.produced += len(tokens)
        shown: Sequence[int] = tokens
        if tokens and tokens[-1] in self._ends and self._armed:
            shown = tokens[:-1]
        deltas.append(Text(self.index, self._detokenizer.push(shown), tokens, logprobs))

    def _push_watched(self, tokens: list[int], logprobs: list[TokenLogprobs] | None, matcher: Matcher) -> Text:
        text = ""
        for taken, token in enumerate(tokens, 1):
            text += self._read(token)
            if matcher.matched is not None:
                return Text(self.index, text, tokens[:taken], None if logprobs is None else logprobs[:taken])
        return Text(self.index, text, tokens, logprobs)

    def _push_parsed(
        self, tokens: list[int], logprobs: list[TokenLogprobs] | None, parsed: Parsed, deltas: list[Delta]
    ) -> None:
        if len(tokens) == 1:
            parsed.push_alone(tokens, logprobs, self._read(tokens[0]), deltas)
        else:
            writer = parsed.writer(deltas)
            for place, token in enumerate(tokens):
                parsed.push(token, None if logprobs is None else logprobs[place], self._read(token), writer)
                if self.matched is not None:
                    break
            parsed.end(writer)
        if self.matched is not None:
            parsed.finish("", deltas, cut=True)

    def _read(self, token: int) -> str:
        """The text that one token made final."""
        self.produced += 1
        armed = self._armed
        if token in self._ends and armed:
            return ""
        text = self._detokenizer.push((token,))
        return text if self._matcher is None else self._matcher.push(text, armed=armed)

    def finish(self, deltas: list[Delta], *, cut: bool) -> None:
        """The text still held back, once no more tokens come. ``cut``: the model would have gone on."""
        text = self._detokenizer.finish()
        if self._matcher is not None:
            text = self._matcher.push(text, armed=self._armed) + self._matcher.finish()
        if self._parsed is not None:
            self._parsed.finish(text, deltas, cut=cut or self.matched is not None)
        elif text:
            self._append(text, deltas)

    def _append(self, rest: str, deltas: list[Delta]) -> None:
        """Adds text to the choice's delta of this batch, or in a new one without tokens."""
        for place in range(len(deltas) - 1, -1, -1):
            delta = deltas[place]
            if isinstance(delta, Text) and delta.index == self.index:
                deltas[place] = Text(self.index, delta.text + rest, delta.tokens, delta.logprobs)
                return
        deltas.append(Text(self.index, rest, [], None))
