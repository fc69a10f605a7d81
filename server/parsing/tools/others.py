"""Formats that only one family of models writes."""

import re
from typing import Final

from .layout import Layout, Signs
from .markup import Markup
from .named import Header, NamedCalls

# Formats of single families that the shared machines read as they are.
_SOLAR: Final = re.compile(r"\s*(?P<id>.*?)\s*<\|tool_call:name\|>\s*(?P<name>\S+)\s*", re.DOTALL)


def _solar(text: str) -> Header | None:
    found = _SOLAR.fullmatch(text)
    return None if found is None else Header(found["name"], found["id"] or None)


def _name(text: str) -> Header | None:
    name = text.strip()
    return Header(name) if name and not any(char in name for char in " \n<") else None


SOLAR: Final = NamedCalls(
    name="solar_open",
    layout=Layout(
        opening="<|tool_calls|>",
        before="<|tool_call:begin|>",
        after="<|tool_call:end|>",
        closing="<|calls|>",
    ),
    calls=("<|tool_call:begin|>",),
    header_ends=("<|tool_call:args|>",),
    header=_solar,
    section=("<|tool_calls|>",),
    section_ends=("<|calls|>",),
    ends=("<|tool_call:end|>",),
    named=("<|tool_call:name|>", ""),
    identified="[a-z0-9]{8,12}",
    written=("<|tool_call:args|>", ""),
    special=frozenset({"<|tool_call:name|>"}),
    signs=(Signs(("<|tool_call:begin|>",)),),
)
FUNCTIONARY: Final = NamedCalls(
    name="functionary_v3.1",
    layout=Layout(before="<function=", after="</function>"),
    calls=("<function=",),
    header_ends=(">",),
    header=_name,
    ends=("</function>",),
    written=(">", ""),
    signs=(Signs(("<function=", "</function>"), ("<parameter=", "<|system_start|>")),),
)
MINICPM5: Final = Markup(
    name="minicpm5",
    layout=Layout(before='<function name="', between="\n"),
    call='<function name="',
    name_ends=('">',),
    parameter='<param name="',
    key_ends=('">',),
    value_end="</param>",
    call_end="</function>",
    written=('">', "", '">', ""),
    signs=(Signs(('<function name="', "<param name=")),),
)


# Kimi K2's format: each call has an id that holds its name.
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
