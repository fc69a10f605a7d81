"""Llama 3's JSON: bare at the beginning of the answer or behind a marker, several between semicolons."""

from typing import Final

from .json_calls import JsonCalls
from .layout import Layout
from .signs import Signs

_ASKED: Final = '{"name": function name, "parameters": dictionary of argument name and its value}'

LLAMA3_JSON: Final = JsonCalls(
    name="llama3_json",
    layout=Layout(between="; "),
    begins=("<|python_tag|>",),
    bare="{[",
    written=("name", "parameters"),
    signs=(
        Signs(("<|python_tag|>",), ("<function=", "<tool_call>", "<|tool_call>")),
        Signs((_ASKED,), ("<tool_call>",)),
    ),
)
