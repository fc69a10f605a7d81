"""Formats with an array of JSON objects behind a marker."""

from typing import Final

from .call_objects import Keys
from .json_calls import JsonCalls
from .layout import Layout
from .signs import Signs

JAMBA: Final = JsonCalls(
    name="jamba",
    layout=Layout(opening="<tool_calls>[", between=", ", closing="]</tool_calls>"),
    begins=("<tool_calls>",),
    ends=("</tool_calls>",),
    signs=(
        Signs(("<tool_calls>[",), ("<beginning_of_sentence>",)),
        Signs(("<tool_calls>",), ("<beginning_of_sentence>", "<tool_call>", "｜DSML｜")),
    ),
)
"""Also Hunyuan A13B and Apriel."""
NEMOTRON: Final = JsonCalls(
    name="nemotron",
    layout=Layout(opening="<TOOLCALL>[", between=", ", closing="]</TOOLCALL>"),
    begins=("<TOOLCALL>",),
    ends=("</TOOLCALL>",),
    signs=(Signs(("<TOOLCALL>",)),),
)
PHI4_MINI: Final = JsonCalls(
    name="phi4_mini_json",
    layout=Layout(opening="functools[", between=", ", closing="]"),
    begins=("functools", "<|tool_call|>"),
    infixes=("functools",),
    ends=("<|/tool_call|>",),
    signs=(Signs(("<|tool|>", "<|/tool|>")), Signs((" functools[",))),
)
APERTUS: Final = JsonCalls(
    name="apertus",
    layout=Layout(opening="<|tools_prefix|>[", between=", ", closing="]<|tools_suffix|>"),
    begins=("<|tools_prefix|>",),
    ends=("<|tools_suffix|>",),
    keys=Keys(keyed=True),
    signs=(Signs(("<|tools_prefix|>", "<|tools_suffix|>")),),
)
COHERE: Final = JsonCalls(
    name="cohere_command3",
    layout=Layout(opening="<|START_ACTION|>[\n    ", between=",\n    ", closing="\n]<|END_ACTION|>"),
    begins=("<|START_ACTION|>",),
    ends=("<|END_ACTION|>",),
    keys=Keys(frozenset({"tool_name"}), frozenset({"parameters"}), frozenset({"tool_call_id"})),
    written=("tool_name", "parameters"),
    signs=(Signs(("<|START_ACTION|>",)),),
)
