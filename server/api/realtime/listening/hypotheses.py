"""Hypotheses of a model about audio, and requests for them."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from ..common.interfaces import TokenProbability
from .agreement import Word


class Hypothesis(NamedTuple):
    """``text`` as the model wrote it: with the space before its first word, if there is one."""

    text: str
    tokens: Sequence[TokenProbability] = ()
    """Their bytes join to the text's, if requested."""


class TranscriptionSettings(msgspec.Struct, frozen=True):
    """Transcription settings of one session."""

    language: str | None = None
    languages: tuple[str, ...] = ()
    """One of these, where none is settled; empty: any."""
    prompt: str = ""
    logprobs: bool = False
    partials: bool = False
    """Whether the client gets partial transcripts."""
    model: str = ""
    """The name by which the session has the model: that of an adapter, or "" or any other for none."""


class Transcribe(Protocol):
    async def __call__(self, pcm: bytes, settings: TranscriptionSettings, *, continued: str, final: bool) -> Hypothesis:
        """The transcript of at most one window, behind ``continued``, which is its beginning.

        A result that is not ``final`` may be worse and can wait. Raises ``BadRequest`` or ``ServerError``.
        """


class WindowHypothesis(NamedTuple):
    """A hypothesis, and the text that it continues."""

    before: str
    hypothesis: Hypothesis

    @property
    def text(self) -> str:
        """Text of the whole window."""
        return self.before + self.hypothesis.text

    def tokens_of(self, words: Sequence[Word]) -> list[TokenProbability]:
        """Tokens that begin within ``words`` of :attr:`text`; given text has none."""
        if not words or not self.hypothesis.tokens:
            return []
        skipped = len(self.before.encode())
        begin = len(self.text[: words[0].begin].encode()) - skipped
        end = len(self.text[: words[-1].begin + len(words[-1].text)].encode()) - skipped
        found, place = [], 0
        for token in self.hypothesis.tokens:
            if begin <= place < end:
                found.append(token)
            place += len(token.bytes)
        return found


class DeliveredText(msgspec.Struct):
    """All text of one turn that the client got."""

    text: str = ""
    tokens: list[TokenProbability] = msgspec.field(default_factory=list)

    def add(self, words: Sequence[Word], reading: WindowHypothesis) -> tuple[str, list[TokenProbability]]:
        """The text and tokens of ``words``, which are the reading's."""
        text = "".join(word.text for word in words)
        if not self.text:
            text = text.lstrip()
        tokens = reading.tokens_of(words) if text else []
        self.text += text
        self.tokens += tokens
        return text, tokens
