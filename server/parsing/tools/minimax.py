"""MiniMax's formats: M2 writes invocations with a tag for each parameter, M1 JSON objects on lines."""

from typing import Final

from .json_calls import JsonCalls
from .layout import Layout
from .markup import Markup
from .signs import Signs

MINIMAX_M2: Final = Markup(
    name="minimax_m2",
    layout=Layout(
        opening="<minimax:tool_call>\n", before='<invoke name="', between="\n", closing="\n</minimax:tool_call>"
    ),
    section="<minimax:tool_call>",
    section_end="</minimax:tool_call>",
    call='<invoke name="',
    name_ends=('">',),
    parameter='<parameter name="',
    key_ends=('">',),
    value_end="</parameter>",
    call_end="</invoke>",
    written=('">\n', "", '">', "\n"),
    special=frozenset({"<minimax:tool_call>", "</minimax:tool_call>"}),
    signs=(Signs(("<minimax:tool_call>",)),),
)
MINIMAX: Final = JsonCalls(
    name="minimax",
    layout=Layout(opening="<tool_calls>\n", between="\n", closing="\n</tool_calls>"),
    begins=("<tool_calls>",),
    ends=("</tool_calls>",),
    signs=(Signs(("<tool_calls>", "<beginning_of_sentence>")),),
)
