"""What every format of tool calls offers."""

from collections.abc import Sequence
from typing import Protocol

from ...grammar.lark import Lark
from ..interface import Parser, Tool


class ToolFormat(Protocol):
    """How one family of models writes calls. Stateless."""

    @property
    def name(self) -> str:
        """As vLLM calls it, where it has the format."""

    @property
    def markers(self) -> frozenset[str]:
        """Texts that must reach the parser where they are special tokens."""

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """For one choice: content in, content and calls out."""

    def grammar(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        """An expression for calls of ``tools`` and nothing else: one or more, or exactly one."""

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        """An expression for any text in which every call is well-formed."""

    def detects(self, template_source: str) -> bool:
        """Whether a chat template is of a model that writes calls like this."""
