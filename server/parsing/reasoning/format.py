"""What there is to know of how a family of models writes its reasoning."""

from typing import Protocol

from ..interface import Parser


class ReasoningParser(Parser, Protocol):
    """Text in; thoughts and content out."""

    @property
    def done(self) -> bool:
        """All that still comes is content, and nothing is held back."""


class ReasoningFormat(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names it goes by."""

    @property
    def markers(self) -> frozenset[str]:
        """Texts that the parser must see, also where the tokenizer has them as special tokens."""

    @property
    def begin(self) -> str:
        """What the model writes, or the prompt ends with, where thinking begins."""

    @property
    def end(self) -> str:
        """What ends it."""

    def detects(self, template_source: str) -> bool:
        """Whether a chat template is of this family."""

    def opened(self, prompt_tail: str, wanted: bool | None, continued: str) -> bool:
        """Whether what the model writes after this prompt begins inside its reasoning.

        ``wanted``: whether the request asks for thinking, where it says. ``continued``: what there is already of the
        message that the model goes on with.
        """

    def parser(self, *, opened: bool, calls: bool = False) -> ReasoningParser:
        """``calls``: tools may be called, and in some families a call ends reasoning that has no end marker."""
