"""Llama 3's JSON: bare at the beginning of the answer or behind a marker, several between semicolons."""

from typing import Final

from .json_calls import JsonCalls
from .layout import Layout

LLAMA3_JSON: Final = JsonCalls(
    name="llama3_json",
    layout=Layout(between="; "),
    begins=("<|python_tag|>",),
    bare="{[",
    written=("name", "parameters"),
    signs=("<|python_tag|>",),
    never=("<function=", "<tool_call>", "<|tool_call>"),
)
