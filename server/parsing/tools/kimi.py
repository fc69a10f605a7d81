"""Kimi K2's format: each call has an id that holds its name."""

import re
from typing import Final

from .layout import Layout
from .named import Header, NamedCalls
from .signs import Signs

_ID: Final = re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>\S+?)(?::(?P<index>\d+))?)\s*")


def _header(text: str) -> Header | None:
    found = _ID.fullmatch(text)
    if found is None:
        return None
    return Header(found["name"], found["id"] if found["index"] else None)


KIMI_K2: Final = NamedCalls(
    name="kimi_k2",
    layout=Layout(
        opening="<|tool_calls_section_begin|>",
        before="<|tool_call_begin|>",
        after="<|tool_call_end|>",
        closing="<|tool_calls_section_end|>",
    ),
    calls=("<|tool_call_begin|>",),
    header_ends=("<|tool_call_argument_begin|>",),
    header=_header,
    section=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    section_ends=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    ends=("<|tool_call_end|>",),
    named=("functions.", ":"),
    identified="[0-9]{1,3}",
    written=("<|tool_call_argument_begin|>", ""),
    signs=(Signs(("<|tool_call_begin|>", "<|tool_call_argument_begin|>")),),
)
