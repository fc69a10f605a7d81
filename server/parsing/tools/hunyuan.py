"""Hunyuan 3's format: as GLM's, with a separator behind the name and all calls between two more tags.

The tags of a published model end in a suffix of its tokenizer's.
"""

from typing import Final

from .layout import Layout
from .markup import Markup
from .signs import Signs


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
