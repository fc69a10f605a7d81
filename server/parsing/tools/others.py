"""Formats of single families that the shared machines read as they are."""

import re
from typing import Final

from .layout import Layout
from .markup import Markup
from .named import Header, NamedCalls
from .signs import Signs

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
