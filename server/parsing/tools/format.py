"""The interface of tool-call formats."""

from collections.abc import Sequence
from typing import Protocol

from ...grammar.lark import Lark
from ..interface import Parser, Tool


class ToolFormat(Protocol):
    """How one family of models writes calls. Stateless."""

    @property
    def name(self) -> str:
        """vLLM's name, if it has the format."""

    @property
    def markers(self) -> frozenset[str]:
        """Texts that must reach the parser where they are special tokens."""

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """For one choice: content in, content and calls out."""

    def grammar(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        """A grammar expression for calls of ``tools`` alone: one or more, or exactly one."""

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        """An expression for any text in which every call is well-formed, except calls without markers behind text."""

    def detects(self, template_source: str) -> bool:
        """Whether a chat template is of a model that writes calls like this."""
