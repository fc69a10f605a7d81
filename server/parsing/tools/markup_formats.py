"""Formats that write a call's name between markers, and its arguments as JSON or each in tags of its own."""

import re
from typing import Final

from msgspec.structs import replace

from .json_calls import JsonCalls
from .layout import Layout, Signs
from .markup import Markup
from .named import Header, NamedCalls

_KIMI_ID: Final = re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>\S+?)(?::(?P<index>\d+))?)\s*")
_SOLAR: Final = re.compile(r"\s*(?P<id>.*?)\s*<\|tool_call:name\|>\s*(?P<name>\S+)\s*", re.DOTALL)


def _kimi(text: str) -> Header | None:
    """An id that holds the name."""
    found = _KIMI_ID.fullmatch(text)
    if found is None:
        return None
    return Header(found["name"], found["id"] if found["index"] else None)


def _solar(text: str) -> Header | None:
    found = _SOLAR.fullmatch(text)
    return None if found is None else Header(found["name"], found["id"] or None)


def _name(text: str) -> Header | None:
    name = text.strip()
    return Header(name) if name and not any(char in name for char in " \n<") else None


def _hunyuan(name: str, suffix: str, signs: Signs) -> Markup:
    """GLM's format, with a separator behind the name and two more tags around all calls.

    The tags of a published model have its tokenizer's suffix.
    """

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
        written=(f"{tag('tool_sep')}\n", f"{key_end}\n{value}", "\n"),
        special=frozenset({key_end, tag("tool_sep")}),
        signs=(signs,),
    )


def hunyuan_v4(suffix: str = "") -> Markup:
    """The same without a separator and lines; each checkpoint may have a suffix of its own."""
    v3 = _hunyuan("hy_v4", suffix, Signs(("<tool_calls", "<arg_key"), ("<tool_sep",)))
    return replace(
        v3,
        layout=Layout(opening=v3.section, before=v3.call, closing=v3.section_end),
        name_ends=(v3.parameter, v3.call_end),
        written=("", f"{v3.key_ends[0]}{v3.value}", ""),
        special=frozenset(v3.key_ends),
    )


_XTML_TYPES: Final = ("string", "object", "array", "boolean", "number", "null")


def _xtml_key_end(types: frozenset[str]) -> str:
    known = types | {"number"} if "integer" in types else types
    return f'" type="{next((name for name in _XTML_TYPES if name in known), "object")}"<|sep|>'


_KIMI_K3: Final = Markup(
    name="kimi_k3",
    layout=Layout(opening="<|open|>tools<|sep|>", before='<|open|>call tool="', closing="<|close|>tools<|sep|>"),
    section="<|open|>tools<|sep|>",
    section_end="<|close|>tools<|sep|>",
    call='<|open|>call tool="',
    name_ends=('"',),
    parameter='<|open|>argument key="',
    key_ends=(*(f'" type="{name}"<|sep|>' for name in _XTML_TYPES), '"<|sep|>'),
    as_string=frozenset({'" type="string"<|sep|>'}),
    as_json=frozenset(f'" type="{name}"<|sep|>' for name in _XTML_TYPES[1:]),
    value_end="<|close|>argument<|sep|>",
    call_end="<|close|>call<|sep|>",
    between=("<|close|>message<|sep|>",),
    written=('" index="', "", ""),
    key_end_for=_xtml_key_end,
    numbered='"<|sep|>',
    attributes=True,
    special=frozenset({"<|open|>", "<|close|>", "<|sep|>"}),
    signs=(Signs(("<|open|>", "<|close|>", "<|sep|>")),),
)
_K2_HORIZON: Final = Markup(
    name="k2_horizon",
    layout=Layout(opening="<ifm|tool_calls>", before="<ifm|tool_call>", closing="</ifm|tool_calls>"),
    section="<ifm|tool_calls>",
    section_end="</ifm|tool_calls>",
    call="<ifm|tool_call>",
    name_ends=("<ifm|arg_key>", "</ifm|tool_call>"),
    parameter="<ifm|arg_key>",
    key_ends=("</ifm|arg_key>",),
    type_tags=("<ifm|arg_type>", "</ifm|arg_type>"),
    value="<ifm|arg_value>",
    value_end="</ifm|arg_value>",
    call_end="</ifm|tool_call>",
    written=("", "</ifm|arg_key><ifm|arg_value>", ""),
    special=frozenset({"</ifm|arg_key>"}),
    signs=(Signs(("<ifm|tool_calls>", "<ifm|arg_key>")),),
)


def _plamo(what: str) -> str:
    return f"<|plamo:{what}:plamo|>"


_PLAMO_JSON: Final = f"{_plamo('begin_tool_arguments')}<|plamo:constrain|>json<|plamo:msg|>"
_PLAMO3: Final = NamedCalls(
    name="plamo3",
    layout=Layout(
        opening=_plamo("begin_tool_requests"),
        before=_plamo("begin_tool_request") + _plamo("begin_tool_name"),
        after=_plamo("end_tool_arguments") + _plamo("end_tool_request"),
        closing=_plamo("end_tool_requests"),
    ),
    calls=(_plamo("begin_tool_name"),),
    header_ends=(_plamo("end_tool_name"),),
    header=_name,
    section=(_plamo("begin_tool_requests"), _plamo("begin_tool_request")),
    section_ends=(_plamo("end_tool_requests"), _plamo("end_tool_request")),
    fence=(_PLAMO_JSON,),
    ends=(_plamo("end_tool_arguments"),),
    written=_plamo("end_tool_name") + _PLAMO_JSON,
    special=frozenset({"<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", "<|plamo:msg|>"}),
    signs=(Signs(("plamo:begin_tool_request",)),),
)
_QWEN3_CODER: Final = Markup(
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
    written=(">\n", ">\n", "\n"),
    signs=(Signs(("<function=", "<parameter="), ("<seed:tool_call>",)),),
)
# the same without any line break, so that those in a value are the value's
_MIMO: Final = replace(
    _QWEN3_CODER,
    name="mimo",
    layout=Layout(before="<tool_call><function=", after="</tool_call>"),
    trim=False,
    written=(">", ">", ""),
    signs=(Signs(("<tool_call><function=", "<parameter=")),),
)
_GLM45: Final = Markup(
    name="glm45",
    layout=Layout(before="<tool_call>", between="\n"),
    call="<tool_call>",
    name_ends=("\n", "<arg_key>", "</tool_call>"),
    parameter="<arg_key>",
    key_ends=("</arg_key>",),
    value="<arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
    written=("\n", "</arg_key>\n<arg_value>", "\n"),
    special=frozenset({"</arg_key>"}),
    signs=(Signs(("<arg_key>", "</arg_key>\n<arg_value>")), Signs(("<arg_key>", r"</arg_key>\n"))),
)

FORMATS: Final = (
    NamedCalls(
        name="kimi_k2",
        layout=Layout(
            opening="<|tool_calls_section_begin|>",
            before="<|tool_call_begin|>",
            after="<|tool_call_end|>",
            closing="<|tool_calls_section_end|>",
        ),
        calls=("<|tool_call_begin|>",),
        header_ends=("<|tool_call_argument_begin|>",),
        header=_kimi,
        section=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
        section_ends=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
        ends=("<|tool_call_end|>",),
        named=("functions.", ":"),
        identified="[0-9]{1,3}",
        signs=(Signs(("<|tool_call_begin|>", "<|tool_call_argument_begin|>")),),
    ),
    # invocations in tags, each between tokens of its own; Step 3.5 writes as Qwen3-Coder does
    Markup(
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
        parameter='<steptml:parameter name="',
        value_end="</steptml:parameter>",
        call_end="</steptml:invoke>",
        between=("<｜tool_call_begin｜>", "function<｜tool_sep｜>", "<｜tool_call_end｜>"),
        special=frozenset({"<｜tool_sep｜>"}),
        signs=(Signs(("<steptml:invoke",)),),
    ),
    NamedCalls(
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
        special=frozenset({"<|tool_call:name|>"}),
        signs=(Signs(("<|tool_call:begin|>",)),),
    ),
    # MiniMax's: M2 writes invocations with a tag for each parameter, as dots does, M1 JSON objects on lines
    Markup(
        name="minimax_m2",
        layout=Layout(
            opening="<minimax:tool_call>\n", before='<invoke name="', between="\n", closing="\n</minimax:tool_call>"
        ),
        section="<minimax:tool_call>",
        section_end="</minimax:tool_call>",
        call='<invoke name="',
        parameter='<parameter name="',
        value_end="</parameter>",
        call_end="</invoke>",
        special=frozenset({"<minimax:tool_call>", "</minimax:tool_call>"}),
        signs=(Signs(("<minimax:tool_call>",)),),
    ),
    Markup(
        name="dots",
        layout=Layout(
            opening="<dots_function_call>\n",
            before='<invoke name="',
            between="\n",
            closing="\n</dots_function_call>",
        ),
        section="<dots_function_call>",
        section_end="</dots_function_call>",
        call='<invoke name="',
        parameter='<parameter name="',
        value_end="</parameter>",
        call_end="</invoke>",
        special=frozenset({"<dots_function_call>", "</dots_function_call>"}),
        signs=(Signs(("<dots_function_call>",)),),
    ),
    JsonCalls(
        name="minimax",
        layout=Layout(opening="<tool_calls>\n", between="\n", closing="\n</tool_calls>"),
        begins=("<tool_calls>",),
        ends=("</tool_calls>",),
        signs=(Signs(("<tool_calls>", "<beginning_of_sentence>")),),
    ),
    # Qwen3-Coder's, which Qwen3.5, Nemotron 3 and Step 3.5 write too, and Seed-OSS with tags of its own
    replace(
        _QWEN3_CODER,
        name="seed_oss",
        layout=Layout(before="<seed:tool_call>\n<function=", after="\n</seed:tool_call>", between="\n"),
        section="<seed:tool_call>",
        section_end="</seed:tool_call>",
        written=(">\n", ">", "\n"),
        signs=(Signs(("<seed:tool_call>",)),),
    ),
    _MIMO,
    _QWEN3_CODER,
    Markup(
        name="minicpm5",
        layout=Layout(before='<function name="', between="\n"),
        call='<function name="',
        parameter='<param name="',
        value_end="</param>",
        call_end="</function>",
        verbatim=("<![CDATA[", "]]>"),
        wrappers=frozenset({"arguments", "properties"}),
        written=('">', '">', ""),
        signs=(Signs(('<function name="', "<param name=")),),
    ),
    NamedCalls(
        name="functionary_v3.1",
        layout=Layout(before="<function=", after="</function>"),
        calls=("<function=",),
        header_ends=(">",),
        header=_name,
        ends=("</function>",),
        signs=(Signs(("<function=", "</function>"), ("<parameter=", "<|system_start|>")),),
    ),
    _hunyuan("hy_v3_opensource", ":opensource", Signs(("tool_sep", ":opensource"))),
    _hunyuan("hy_v3", "", Signs(("<tool_sep",), (":opensource",))),
    hunyuan_v4(),
    Markup(
        name="muse",
        layout=Layout(
            opening="<atem:function_calls>\n",
            before='<atem:invoke name="',
            between="\n",
            closing="\n</atem:function_calls>",
        ),
        section="<atem:function_calls>",
        section_end="</atem:function_calls>",
        call='<atem:invoke name="',
        parameter='<atem:parameter name="',
        value_end="</atem:parameter>",
        call_end="</atem:invoke>",
        doubled=True,
        signs=(Signs(("<atem:invoke",)),),
    ),
    _KIMI_K3,
    _K2_HORIZON,
    _PLAMO3,
    # keys and values in tags of their own: GLM-4.5 and 4.6 write lines, 4.7 and others none
    _GLM45,
    replace(
        _GLM45,
        name="glm47",
        layout=Layout(before="<tool_call>"),
        written=("", "</arg_key><arg_value>", ""),
        signs=(Signs(("<arg_key>",)),),
    ),
)
