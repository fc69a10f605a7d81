"""GigaChat 3's formats: one JSON object in a message with a role of its own (3), or behind a token (3.1)."""

from dataclasses import replace
from typing import Final

from .json_calls import JsonCalls
from .layout import Layout
from .signs import Signs

_ROLE: Final = "function call<|role_sep|>\n"

GIGACHAT31: Final = JsonCalls(
    name="gigachat31",
    layout=Layout(before="<|function_call|>", after="<|message_sep|>", between="\n\n"),
    begins=("<|function_call|>", _ROLE),
    ends=("<|message_sep|>", "</s>"),
    dropped=frozenset({"<|message_sep|>"}),
    special=frozenset({"<|role_sep|>", "<|function_call|>", "<|message_sep|>"}),
    signs=(Signs(("<|message_sep|>", "<|function_call|>")),),
)
GIGACHAT3: Final = replace(
    GIGACHAT31,
    name="gigachat3",
    layout=Layout(before=_ROLE, after="<|message_sep|>", between="\n\n"),
    begins=(_ROLE, "<|function_call|>"),
    signs=(Signs(("<|message_sep|>", "function call")),),
)
