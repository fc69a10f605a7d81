"""For models whose template knows no tools: Hermes' tags, and JSON in a fence or bare that looks like a call."""

from typing import Final

from .json_calls import JsonCalls
from .layout import Layout

PLAIN: Final = JsonCalls(
    name="plain",
    layout=Layout(before="<tool_call>\n", after="\n</tool_call>", between="\n"),
    begins=("<tool_call>",),
    guesses=("```",),
    infixes=("json",),
    ends=("</tool_call>", "```"),
    bare="{[",
    wary=True,
)
