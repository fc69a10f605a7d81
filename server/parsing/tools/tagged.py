"""Formats with one JSON object between two tags: Hermes, which Qwen and many others took over, and its relatives."""

from typing import Final

from .json_calls import JsonCalls
from .layout import Layout
from .signs import Signs

_TAGGED: Final = Layout(before="<tool_call>\n", after="\n</tool_call>", between="\n")

_OTHERS: Final = (
    "<function=", "<arg_key>", "<TOOLCALL>", "<seed:tool_call>", "<|tool_call>", "<invoke", "minimax",
)  # fmt: skip

HERMES: Final = JsonCalls(
    name="hermes",
    layout=_TAGGED,
    begins=("<tool_call>",),
    ends=("</tool_call>",),
    signs=(Signs(("<tool_call>",), _OTHERS),),
)
LONGCAT: Final = JsonCalls(
    name="longcat",
    layout=Layout(before="<longcat_tool_call>\n", after="\n</longcat_tool_call>", between="\n"),
    begins=("<longcat_tool_call>",),
    ends=("</longcat_tool_call>",),
    signs=(Signs(("<longcat_tool_call>",)),),
)
ERNIE45: Final = JsonCalls(
    name="ernie45",
    layout=_TAGGED,
    begins=("<tool_call>",),
    ends=("</tool_call>",),
    dropped=frozenset({"<response>", "</response>"}),
    signs=(Signs(("<tool_call>", "<response>"), ("minimax",)),),
)
