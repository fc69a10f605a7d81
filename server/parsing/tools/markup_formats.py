"""Formats that write calls in tags, and each argument in tags of its own."""

from typing import Final

from .json_calls import JsonCalls
from .layout import Layout, Signs
from .markup import Markup

# Qwen3-Coder's format, which Qwen3.5, Nemotron 3 and Step 3.5 write too, and Seed-OSS's with tags of its own.
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


# GLM's formats: keys and values in tags of their own. GLM-4.5 and 4.6 write lines, 4.7 and others none.
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


# MiniMax's formats: M2 writes invocations with a tag for each parameter, M1 JSON objects on lines.
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


# Step-3's format: invocations in tags, each between tokens of its own. Step 3.5 writes as Qwen3-Coder does.
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


# Hunyuan 3's format: as GLM's, with a separator behind the name and all calls between two more tags.  The tags
# of a published model end in a suffix of its tokenizer's.
def _format(name: str, suffix: str, signs: Signs) -> Markup:
    def tag(text: str) -> str:
        return f"<{text}{suffix}>"

    key_end, value = tag("/arg_key"), tag("arg_value")
    return Markup(
        name=name,
        layout=Layout(
            opening=f"{tag('tool_calls')}\n", before=tag("tool_call"), between="\n", closing=f"\n{tag('/tool_calls')}"
        ),
        section=tag("tool_calls"),
        section_end=tag("/tool_calls"),
        call=tag("tool_call"),
        name_ends=(tag("tool_sep"),),
        parameter=tag("arg_key"),
        key_ends=(key_end,),
        value=value,
        value_end=tag("/arg_value"),
        call_end=tag("/tool_call"),
        written=(f"{tag('tool_sep')}\n", "", f"{key_end}\n{value}", "\n"),
        special=frozenset({key_end, tag("tool_sep")}),
        signs=(signs,),
    )


HY_V3_OPEN: Final = _format("hy_v3_opensource", ":opensource", Signs(("tool_sep", ":opensource")))
HY_V3: Final = _format("hy_v3", "", Signs(("<tool_sep",), (":opensource",)))
