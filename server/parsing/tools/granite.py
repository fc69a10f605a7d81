"""Granite's formats: an array behind a marker (3), an object behind one each (20B function calling); 4 is Hermes."""

from typing import Final

from .json_calls import JsonCalls
from .layout import Layout
from .signs import Signs

GRANITE: Final = JsonCalls(
    name="granite",
    layout=Layout(opening="<|tool_call|>[", between=", ", closing="]"),
    begins=("<|tool_call|>", "<tool_call>"),
    ends=("</tool_call>",),
    signs=(Signs(("<|tool_call|>", "<|start_of_role|>")),),
)
GRANITE_20B_FC: Final = JsonCalls(
    name="granite-20b-fc",
    layout=Layout(before="<function_call> ", between="\n"),
    begins=("<function_call>",),
    signs=(Signs(("<function_call>",)),),
)
