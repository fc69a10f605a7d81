"""GLM's formats: keys and values in tags of their own. GLM-4.5 and 4.6 write lines, 4.7 and others none."""

from typing import Final

from .layout import Layout
from .markup import Markup
from .signs import Signs

_NAME_ENDS: Final = ("\n", "<arg_key>", "</tool_call>")

GLM45: Final = Markup(
    name="glm45",
    layout=Layout(before="<tool_call>", between="\n"),
    call="<tool_call>",
    name_ends=_NAME_ENDS,
    parameter="<arg_key>",
    key_ends=("</arg_key>",),
    value="<arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
    written=("\n", "", "</arg_key>\n<arg_value>", "\n"),
    special=frozenset({"</arg_key>"}),
    signs=(Signs(("<arg_key>", "</arg_key>\n<arg_value>")), Signs(("<arg_key>", r"</arg_key>\n"))),
)
GLM47: Final = Markup(
    name="glm47",
    layout=Layout(before="<tool_call>"),
    call="<tool_call>",
    name_ends=_NAME_ENDS,
    parameter="<arg_key>",
    key_ends=("</arg_key>",),
    value="<arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
    written=("", "", "</arg_key><arg_value>", ""),
    special=frozenset({"</arg_key>"}),
    signs=(Signs(("<arg_key>",)),),
)
