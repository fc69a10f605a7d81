"""Qwen3-Coder's format, which Qwen3.5, Nemotron 3 and Step 3.5 write too, and Seed-OSS's with tags of its own."""

from typing import Final

from .layout import Layout
from .markup import Markup
from .signs import Signs

QWEN3_CODER: Final = Markup(
    name="qwen3_coder",
    layout=Layout(before="<tool_call>\n<function=", after="\n</tool_call>", between="\n"),
    section="<tool_call>",
    section_end="</tool_call>",
    call="<function=",
    name_ends=(">",),
    parameter="<parameter=",
    key_ends=(">",),
    value_end="</parameter>",
    call_end="</function>",
    trim=True,
    written=(">\n", "", ">\n", "\n"),
    signs=(Signs(("<function=", "<parameter="), ("<seed:tool_call>",)),),
)
SEED_OSS: Final = Markup(
    name="seed_oss",
    layout=Layout(before="<seed:tool_call>\n<function=", after="\n</seed:tool_call>", between="\n"),
    section="<seed:tool_call>",
    section_end="</seed:tool_call>",
    call="<function=",
    name_ends=(">",),
    parameter="<parameter=",
    key_ends=(">",),
    value_end="</parameter>",
    call_end="</function>",
    trim=True,
    written=(">\n", "", ">", "\n"),
    signs=(Signs(("<seed:tool_call>",)),),
)
