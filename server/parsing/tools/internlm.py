"""InternLM's format: one JSON object between tokens that say which plugin it is for."""

from typing import Final

from .json_calls import JsonCalls
from .layout import Layout
from .signs import Signs

INTERNLM: Final = JsonCalls(
    name="internlm",
    layout=Layout(before="<|action_start|><|plugin|>\n", after="<|action_end|>", between="\n"),
    begins=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
    ends=("<|action_end|>",),
    special=frozenset({"<|action_start|>", "<|plugin|>", "<|action_end|>"}),
    written=("name", "parameters"),
    signs=(Signs(("<|action_start|>", "<|plugin|>")),),
)
