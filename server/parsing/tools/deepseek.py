"""DeepSeek's formats: V3 and R1 fence the arguments, V3.1 writes them bare, V3.2 and later use tags."""

from typing import Final

from msgspec.structs import replace

from .layout import Layout, Signs
from .markup import Markup
from .named import Header, NamedCalls

_BEGIN: Final = "<｜tool▁calls▁begin｜>"
_END: Final = "<｜tool▁calls▁end｜>"
_CALL: Final = "<｜tool▁call▁begin｜>"
_CALL_END: Final = "<｜tool▁call▁end｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"
_TAG: Final = "｜DSML｜"


def _bare(text: str) -> Header | None:
    name = text.strip()
    return Header(name) if name and "\n" not in name else None


def _typed(text: str) -> Header | None:
    """``function``, a separator and the name; the type is always the same."""
    return _bare(text.rpartition(_SEPARATOR)[2])


_DEEPSEEK_V3: Final = NamedCalls(
    name="deepseek_v3",
    layout=Layout(
        opening=_BEGIN, before=f"{_CALL}function{_SEPARATOR}", after=f"\n```{_CALL_END}", between="\n", closing=_END
    ),
    calls=(_CALL,),
    header_ends=("\n", "```json"),
    header=_typed,
    section=(_BEGIN,),
    section_ends=(_END,),
    fence=("```json", "```"),
    ends=(_CALL_END,),
    written="\n```json\n",
    special=frozenset({_SEPARATOR}),
    signs=(Signs((_CALL, "```json")),),
)
_DEEPSEEK_V31: Final = NamedCalls(
    name="deepseek_v31",
    layout=Layout(opening=_BEGIN, before=_CALL, after=_CALL_END, closing=_END),
    calls=(_CALL,),
    header_ends=(_SEPARATOR,),
    header=_bare,
    section=(_BEGIN,),
    section_ends=(_END,),
    fence=("```json", "```"),
    ends=(_CALL_END,),
    signs=(Signs((_CALL,)),),
)
_DEEPSEEK_V32: Final = Markup(
    name="deepseek_v32",
    layout=Layout(
        opening=f"<{_TAG}function_calls>\n",
        before=f'<{_TAG}invoke name="',
        between="\n",
        closing=f"\n</{_TAG}function_calls>",
    ),
    section=f"<{_TAG}function_calls>",
    section_end=f"</{_TAG}function_calls>",
    call=f'<{_TAG}invoke name="',
    parameter=f'<{_TAG}parameter name="',
    key_ends=('" string="true">', '" string="false">', '">'),
    as_string=frozenset({'" string="true">'}),
    as_json=frozenset({'" string="false">'}),
    wrappers=frozenset({"arguments", "input"}),
    value_end=f"</{_TAG}parameter>",
    call_end=f"</{_TAG}invoke>",
    written=('">\n', '" string="true">', "\n"),
    key_end_for=lambda types: '" string="true">' if "string" in types else '" string="false">',
    special=frozenset({_TAG}),
    signs=(Signs((_TAG, "function_calls>")),),
)
_DEEPSEEK_V4: Final = replace(
    _DEEPSEEK_V32,
    name="deepseek_v4",
    layout=replace(_DEEPSEEK_V32.layout, opening=f"<{_TAG}tool_calls>\n", closing=f"\n</{_TAG}tool_calls>"),
    section=f"<{_TAG}tool_calls>",
    section_end=f"</{_TAG}tool_calls>",
    signs=(Signs((_TAG,)),),
)
# the same with a blank behind the token in each tag
_DEEPSEEK_V41: Final = replace(
    _DEEPSEEK_V32,
    name="deepseek_v41",
    layout=Layout(
        opening=f"<{_TAG} calls>\n", before=f'<{_TAG} invoke name="', between="\n", closing=f"\n</{_TAG} calls>"
    ),
    section=f"<{_TAG} calls>",
    section_end=f"</{_TAG} calls>",
    call=f'<{_TAG} invoke name="',
    parameter=f'<{_TAG} parameter name="',
    value_end=f"</{_TAG} parameter>",
    call_end=f"</{_TAG} invoke>",
    signs=(Signs((f"{_TAG} calls>",)),),
)
FORMATS: Final = (_DEEPSEEK_V41, _DEEPSEEK_V32, _DEEPSEEK_V4, _DEEPSEEK_V3, _DEEPSEEK_V31)
