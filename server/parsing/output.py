"""How the model that is served writes reasoning and tool calls: settled once, at start."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, TypeVar

import msgspec

from ..grammar.lark import ANY_TEXT, Lark
from .harmony import CALL, CHANNEL, CONSTRAIN, END, FUNCTIONS, MARKERS, MESSAGE, RETURN, START, HarmonyParser
from .interface import Content, Parser, Piece, ReasoningParser, Tool
from .reasoning.formats import REASONING_FORMATS, HarmonyReasoning, marker_suffix, reasoning_of, with_suffix
from .reasoning.marked import ReasoningFormat
from .tools import deepseek, gemma, json_formats, markup_formats, mistral, nested, python_calls
from .tools.format import ToolFormat
from .tools.layout import arguments, either


class HarmonyTools:
    """A :class:`~.tools.format.ToolFormat`; one call at a time, since its end ends the model's turn."""

    name = "gpt_oss"
    markers = MARKERS

    def parser(self, tools: Sequence[Tool]) -> Parser:
        return HarmonyParser(tools, opened=False)

    def grammar(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        return f"{_turn(lark)} {either(lark, tools, _call)}"

    def free_grammar(self, lark: Lark, tools: Sequence[Tool]) -> str:
        channel = lark.either([lark.literal("analysis"), lark.literal("commentary")])
        said = f"{lark.literal(CHANNEL)} {channel} {lark.literal(MESSAGE)} {lark.text_until(END)}"
        last = [self.grammar(lark, tools, parallel=False), answer(lark, lark.rule(ANY_TEXT))]
        return f"( {lark.rule(f'{_turn(lark)} {said}')} )* {lark.either(last)}"

    def detects(self, template_source: str) -> bool:
        return CHANNEL in template_source and MESSAGE in template_source


def answer(lark: Lark, expression: str) -> str:
    """A final message that says ``expression``."""
    return f"{_turn(lark)} {lark.literal(f'{CHANNEL}final{MESSAGE}')} {expression} ( {lark.literal(RETURN)} )?"


def _turn(lark: Lark) -> str:
    """The header of a further message; the prompt contains the first one's."""
    return f"( {lark.literal(f'{START}assistant')} )?"


def _call(lark: Lark, tool: Tool) -> str:
    header = f"{CHANNEL}commentary to={FUNCTIONS}{tool.name} {CONSTRAIN}json{MESSAGE}"
    return f"{lark.literal(header)} {arguments(lark, tool)} {lark.literal(CALL)}"


HARMONY_TOOLS = HarmonyTools()


class Chain:
    """Runs a second parser over the content of the first."""

    __slots__ = ("_calls", "_reasoning")

    def __init__(self, reasoning: ReasoningParser, calls: Parser) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def thinking(self) -> bool:
        return self._reasoning.thinking

    def push(self, text: str) -> list[Piece]:
        if self._reasoning.done:
            return self._calls.push(text)
        return self._read(self._reasoning.push(text))

    def finish(self, *, cut: bool = False) -> list[Piece]:
        pieces = self._read(self._reasoning.finish(cut=cut))
        pieces += self._calls.finish(cut=cut)
        return pieces

    def _read(self, pieces: list[Piece]) -> list[Piece]:
        read: list[Piece] = []
        for piece in pieces:
            if type(piece) is Content:
                read += self._calls.push(piece.text)
            else:
                read.append(piece)
        return read


Format = TypeVar("Format")

AUTO: Final = "auto"
NONE: Final = "none"
FORMATS: Final[tuple[ToolFormat, ...]] = (
    *deepseek.FORMATS,
    *markup_formats.FORMATS,
    *gemma.FORMATS,
    *nested.FORMATS,
    *mistral.FORMATS,
    *json_formats.MESSAGE_FORMATS,
    *python_calls.FORMATS,
    *json_formats.FORMATS,
)
"""In the order in which templates are matched; the same holds within each module. gpt-oss's is separate."""

_ALIASES: Final = {
    "qwen": "hermes",
    "qwen3_json": "hermes",
    "granite4": "hermes",
    "qwen3_xml": "qwen3_coder",
    "nemotron_v3": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "step5": "qwen3_coder",
    "llama4_json": "llama3_json",
    "hunyuan_a13b": "jamba",
    "minimax_m1": "minimax",
    "ling3": "glm45",
    "poolside_v1": "glm45",
    "muse_glimmer": "muse",
    "musespark1x": "muse",
    "cohere_command4": "cohere_command3",
}
_NAMED: Final = {format.name: format for format in FORMATS}
TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {
    **_NAMED,
    **{alias: _NAMED[name] for alias, name in _ALIASES.items()},
    **dict.fromkeys((HARMONY_TOOLS.name, "openai"), HARMONY_TOOLS),
}
_HARMONY: Final = REASONING_FORMATS[HARMONY_TOOLS.name]


class UnknownFormat(LookupError):
    """The message lists the known names."""


class OutputFormat(msgspec.Struct, frozen=True, dict=True):
    reasoning: ReasoningFormat | None = None
    """None: all text is the answer."""
    tools: ToolFormat | None = None
    """None: no tool calls."""

    @property
    def harmony(self) -> bool:
        """Reasoning, calls and answers are messages in channels, and one parser reads them all."""
        return isinstance(self.reasoning, HarmonyReasoning)

    @property
    def turn_ends(self) -> tuple[str, ...]:
        """Special tokens that end the model's turn, even if its files name only others."""
        return (RETURN, CALL) if self.harmony else ()

    @cached_property
    def visible(self) -> frozenset[str]:
        """Markers that the parser must see where they are special tokens."""
        return self._thoughts | self._calls

    def visible_with(self, *, calls: bool) -> frozenset[str]:
        """Special tokens that a parser needs, with tools or without: others would only become text."""
        return self.visible if calls else self._thoughts

    @cached_property
    def _thoughts(self) -> frozenset[str]:
        return frozenset() if self.reasoning is None else self.reasoning.markers

    @cached_property
    def _calls(self) -> frozenset[str]:
        return frozenset() if self.tools is None else self.tools.markers

    def parser(self, tools: Sequence[Tool], *, opened: bool) -> Parser | None:
        """The parser of one choice; None if there is nothing to parse.

        ``tools``: callable tools; without any, text that looks like a call is text. ``opened``: the result of
        :meth:`thinking_opened` for the prompt.
        """
        if self.harmony:
            return HarmonyParser(tools if self.tools is not None else (), opened=opened)
        calls = self.tools.parser(tools) if tools and self.tools is not None else None
        if self.reasoning is None:
            return calls
        reasoning = self.reasoning.parser(opened=opened, calls=calls is not None)
        return reasoning if calls is None else Chain(reasoning, calls)

    def answer(self, lark: Lark, expression: str) -> str:
        """A grammar expression for an answer that matches ``expression``, with the model's text around answers."""
        return answer(lark, expression) if self.harmony else expression

    def thinking_opened(self, prompt_tail: str, *, wanted: bool | None = None, continued: str = "") -> bool:
        """Whether the output begins inside the model's reasoning.

        ``prompt_tail``: the end of the rendered prompt, at least its generation prompt. ``wanted``: whether the request
        enables thinking, None if it does not say. ``continued``: the existing text of a message that
        ``continue_final_message`` continues.
        """
        return self.reasoning is not None and self.reasoning.opened(prompt_tail, wanted, continued)

    def answer_begins(self, *, opened: bool) -> str:
        """What stands between a prompt and the first word of an answer without reasoning. ``opened``: as for
        :meth:`parser`."""
        if self.harmony:
            return f"{CHANNEL}final{MESSAGE}"
        if self.reasoning is None or not opened:
            return ""
        return f"\n{self.reasoning.end}\n\n{(self.reasoning.wrapper or ('',))[0]}"

    def __str__(self) -> str:
        reasoning = NONE if self.reasoning is None else self.reasoning.name
        tools = NONE if self.tools is None else self.tools.name
        return f"reasoning {reasoning}, tool calls {tools}"


def detected(template_source: str) -> ToolFormat:
    """The format of a model with this chat template; the plain one where the template says nothing of calls."""
    return next((format for format in FORMATS if format.detects(template_source)), _NAMED["plain"])


def settle_output(
    reasoning: str, tools: str, template_source: str, architecture: str, special_texts: str = ""
) -> OutputFormat:
    """The formats of the flags: names, ``auto`` (by the chat template), or ``none``. Raises UnknownFormat.

    gpt-oss's channels contain both, so one flag that names them is enough. ``special_texts`` are the tokenizer's, which
    may show a suffix of Hunyuan V4's markers.
    """
    thinks = chosen_reasoning(reasoning)
    if reasoning == AUTO:
        thinks = reasoning_of(template_source, architecture)
    calls = chosen_tools(tools)
    if calls is HARMONY_TOOLS:
        thinks = _HARMONY
    elif thinks is _HARMONY:
        calls = None if tools == NONE else HARMONY_TOOLS
    elif tools == AUTO:
        calls = detected(template_source)
    if suffix := marker_suffix(f"{template_source} {special_texts}"):
        if calls is TOOL_FORMATS["hy_v4"]:
            calls = markup_formats.hunyuan_v4(suffix)
        if thinks is REASONING_FORMATS["hy_v4"]:
            thinks = with_suffix(thinks, suffix)
    return OutputFormat(thinks, calls)


def chosen_reasoning(name: str) -> ReasoningFormat | None:
    """None for ``auto`` and ``none``. Raises UnknownFormat."""
    return _chosen(name, REASONING_FORMATS, "reasoning format")


def chosen_tools(name: str) -> ToolFormat | None:
    """None for ``auto`` and ``none``. Raises UnknownFormat."""
    return _chosen(name, TOOL_FORMATS, "format of tool calls")


def _chosen(name: str, formats: Mapping[str, Format], what: str) -> Format | None:
    if name in (AUTO, NONE):
        return None
    if name not in formats:
        known = ", ".join((AUTO, NONE, *sorted(formats)))
        raise UnknownFormat(f"there is no {what} {name!r}; choose one of {known}")
    return formats[name]
