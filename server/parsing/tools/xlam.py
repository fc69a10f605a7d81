"""xLAM's formats: an array of JSON objects, bare, in a fence or in tags."""

from typing import Final

from .json_calls import JsonCalls
from .layout import Layout
from .signs import Signs

XLAM: Final = JsonCalls(
    name="xlam",
    layout=Layout(opening="[", between=", ", closing="]"),
    begins=("<tool_call>", "[TOOL_CALLS]"),
    guesses=("```",),
    infixes=("json",),
    ends=("</tool_call>", "```"),
    bare="[",
    special=frozenset({"<tool_call>", "</tool_call>"}),
    signs=(Signs(("xlam",)),),
)
