"""Step-3's format: invocations in tags, each between tokens of its own. Step 3.5 writes as Qwen3-Coder does."""

from typing import Final

from .layout import Layout
from .markup import Markup
from .signs import Signs

STEP3: Final = Markup(
    name="step3",
    layout=Layout(
        opening="<｜tool_calls_begin｜>",
        before='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
        after="<｜tool_call_end｜>",
        closing="<｜tool_calls_end｜>",
    ),
    section="<｜tool_calls_begin｜>",
    section_end="<｜tool_calls_end｜>",
    call='<steptml:invoke name="',
    name_ends=('">',),
    parameter='<steptml:parameter name="',
    key_ends=('">',),
    value_end="</steptml:parameter>",
    call_end="</steptml:invoke>",
    between=("<｜tool_call_begin｜>", "function<｜tool_sep｜>", "<｜tool_call_end｜>"),
    written=('">\n', "", '">', "\n"),
    special=frozenset({"<｜tool_sep｜>"}),
    signs=(Signs(("<steptml:invoke",)),),
)
