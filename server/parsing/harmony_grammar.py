"""What gpt-oss may write, where a request constrains it: calls and answers in their messages."""

from collections.abc import Sequence

from ..grammar.lark import ANY_TEXT, Lark
from .harmony import CALL, CHANNEL, CONSTRAIN, END, FUNCTIONS, MARKERS, MESSAGE, RETURN, START, HarmonyParser
from .interface import Parser, Tool
from .tools.layout import arguments, either


class HarmonyTools:
    """A :class:`~.tools.format.ToolFormat`; there is one call at a time, for its end ends the model's turn."""

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
    """What stands before a message; the prompt has written it before the first."""
    return f"( {lark.literal(f'{START}assistant')} )?"


def _call(lark: Lark, tool: Tool) -> str:
    header = f"{CHANNEL}commentary to={FUNCTIONS}{tool.name} {CONSTRAIN}json{MESSAGE}"
    return f"{lark.literal(header)} {arguments(lark, tool)} {lark.literal(CALL)}"


HARMONY_TOOLS = HarmonyTools()
