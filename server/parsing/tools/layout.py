"""Grammars of calls: text around and between them."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from stentor.protocols.common.abstract import AbstractStruct
from stentor.protocols.openai.tools import CUSTOM_INPUT

from ...grammar.lark import ANY_TEXT, Lark
from ...grammar.quoted_lark import quoted_lark
from ..interface import Tool

NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object"}
MOST_CALLS: Final = 64
"""Most calls of an answer that must be calls: a small model may otherwise repeat itself without end. More calls can
follow in the next turn."""
_BLANK: Final = r"\t\r\n"
_LINE: Final = r"\n"


class Layout(msgspec.Struct, frozen=True):
    """The text around calls, as the model's own template writes it."""

    opening: str = ""
    """In front of all calls."""
    before: str = ""
    """In front of each."""
    after: str = ""
    between: str = ""
    closing: str = ""

    def calls(self, lark: Lark, one: str, *, parallel: bool, without: str = "") -> str:
        """One call or more. ``without`` is the beginning that has been matched already."""
        first = lark.literal((self.opening + self.before).removeprefix(without))
        # one literal must not begin another: the longer one would win, and there is no way back
        call = lark.rule(f"{one} {lark.literal(self.after)}")
        times = "*" if without else f"{{0,{MOST_CALLS - 1}}}"  # free text goes on anyway
        more = f"( {lark.literal(self.between + self.before)} {call} ){times}" if parallel else ""
        space = "" if without else r'( "\n" | "\n\n" )?'  # many models begin so after their reasoning
        return f"{space} {first} {call} {more} {lark.literal(self.closing)}"


class Signs(msgspec.Struct, frozen=True):
    """Texts in the source of a chat template that betray the format of its model's calls."""

    present: tuple[str, ...]
    absent: tuple[str, ...] = ()

    def fit(self, template_source: str) -> bool:
        """Whether the template has all required texts and none of the excluded ones."""
        return all(sign in template_source for sign in self.present) and not any(
            sign in template_source for sign in self.absent
        )


class LaidOut(msgspec.Struct, metaclass=AbstractStruct, frozen=True, kw_only=True):
    """The common part of most implementations of :class:`~.format.ToolFormat`."""

    name: str
    layout: Layout
    """Layout of required calls."""
    signs: tuple[Signs, ...] = ()
    """A template in which one of them fits is of this format."""

    def grammar(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        return self.layout.calls(lark, either(lark, tools, self._one), parallel=parallel)

    def detects(self, template_source: str) -> bool:
        return any(sign.fit(template_source) for sign in self.signs)

    @abstractmethod
    def _one(self, lark: Lark, tool: Tool) -> str:
        """A call of the tool, with the layout's text before it."""


def free(lark: Lark, layout: Layout, one: str, marker: str, bare: str = "") -> str:
    """Any text, in which calls follow each ``marker``, with which the layout must begin.

    The text does not begin with one of the characters ``bare``.
    """
    calls = lark.rule(layout.calls(lark, one, parallel=True, without=marker))
    more = f"( {lark.text_until(marker)} {calls} )* {lark.rule(ANY_TEXT)}"
    if not bare:
        return more
    other = _not_beginning_with(bare)
    return f"( {lark.text_until(marker, other)} {calls} {more} | {lark.rule(other)} )"


def free_bare(lark: Lark, layout: Layout, one: str, first: str) -> str:
    """Any text that does not begin with one of the characters ``first``, or calls."""
    calls = lark.rule(layout.calls(lark, one, parallel=True))
    return f"( {calls} | {lark.rule(_not_beginning_with(first))} )"


def _not_beginning_with(characters: str) -> str:
    """A terminal for other text; whitespace in front does not count."""
    excluded = "".join("\\" + char for char in characters)
    return f"/[ {_BLANK}]*([^{excluded} {_BLANK}](.|{_LINE})*)?/"


def either(lark: Lark, tools: Sequence[Tool], one: Callable[[Lark, Tool], str]) -> str:
    """A call of one of the tools."""
    return "( " + " | ".join(lark.rule(one(lark, tool)) for tool in tools) + " )"


def arguments(lark: Lark, tool: Tool) -> str:
    """JSON of a tool's arguments, which are an object though its schema may not say so."""
    if tool.grammar is not None:
        key = lark.literal(f'{{"{CUSTOM_INPUT}": ')
        return lark.rule(f'{key} {quoted_input(lark, tool.grammar)} "}}"')
    schema = dict(tool.parameters or NO_ARGUMENTS)
    if not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf"}:
        schema["type"] = "object"
    return lark.json(schema, f"tools.{tool.name}.parameters", closed=True)


def quoted_input(lark: Lark, grammar: str) -> str:
    """A JSON string whose decoded text matches the Lark grammar. Raises BadRequest.

    Formats with bare strings use quotes here too: a grammar may allow one of their markers, or the beginning of one,
    and only quotes make the end of the text clear.
    """
    return lark.rule(f'"\\"" {lark.grammar(quoted_lark(grammar, "tools"))} "\\""')


def members(lark: Lark, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Items in this order with a separator between them; those that are not required may be left out."""
    first = rest = '""'
    for item, required in reversed(items):
        following = lark.rule(f"{lark.literal(separator)} {item} {rest}")
        leading = lark.rule(f"{item} {rest}")
        rest, first = (
            (following, leading)
            if required
            else (lark.rule(f"{following} | {rest}"), lark.rule(f"{leading} | {first}"))
        )
    return first
