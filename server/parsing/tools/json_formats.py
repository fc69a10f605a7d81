"""Formats that write calls as JSON objects between markers."""

from dataclasses import replace
from typing import Final

from .call_objects import Keys
from .json_calls import JsonCalls
from .layout import Layout, Signs

# Formats with one JSON object between two tags: Hermes, which Qwen and many others took over, and its
# relatives.
_TAGGED: Final = Layout(before="<tool_call>\n", after="\n</tool_call>", between="\n")

_OTHERS: Final = (
    "<function=", "<arg_key>", "<TOOLCALL>", "<seed:tool_call>", "<|tool_call>", "<invoke", "minimax",
)  # fmt: skip

HERMES: Final = JsonCalls(
    name="hermes",
    layout=_TAGGED,
    begins=("<tool_call>",),
    ends=("</tool_call>",),
    signs=(Signs(("<tool_call>",), _OTHERS),),
)
LONGCAT: Final = JsonCalls(
    name="longcat",
    layout=Layout(before="<longcat_tool_call>\n", after="\n</longcat_tool_call>", between="\n"),
    begins=("<longcat_tool_call>",),
    ends=("</longcat_tool_call>",),
    signs=(Signs(("<longcat_tool_call>",)),),
)
ERNIE45: Final = JsonCalls(
    name="ernie45",
    layout=_TAGGED,
    begins=("<tool_call>",),
    ends=("</tool_call>",),
    dropped=frozenset({"<response>", "</response>"}),
    signs=(Signs(("<tool_call>", "<response>"), ("minimax",)),),
)


# Formats with an array of JSON objects behind a marker.
JAMBA: Final = JsonCalls(
    name="jamba",
    layout=Layout(opening="<tool_calls>[", between=", ", closing="]</tool_calls>"),
    begins=("<tool_calls>",),
    ends=("</tool_calls>",),
    signs=(
        Signs(("<tool_calls>[",), ("<beginning_of_sentence>",)),
        Signs(("<tool_calls>",), ("<beginning_of_sentence>", "<tool_call>", "｜DSML｜")),
    ),
)
"""Also Hunyuan A13B and Apriel."""
NEMOTRON: Final = JsonCalls(
    name="nemotron",
    layout=Layout(opening="<TOOLCALL>[", between=", ", closing="]</TOOLCALL>"),
    begins=("<TOOLCALL>",),
    ends=("</TOOLCALL>",),
    signs=(Signs(("<TOOLCALL>",)),),
)
PHI4_MINI: Final = JsonCalls(
    name="phi4_mini_json",
    layout=Layout(opening="functools[", between=", ", closing="]"),
    begins=("functools", "<|tool_call|>"),
    infixes=("functools",),
    ends=("<|/tool_call|>",),
    signs=(Signs(("<|tool|>", "<|/tool|>")), Signs((" functools[",))),
)
APERTUS: Final = JsonCalls(
    name="apertus",
    layout=Layout(opening="<|tools_prefix|>[", between=", ", closing="]<|tools_suffix|>"),
    begins=("<|tools_prefix|>",),
    ends=("<|tools_suffix|>",),
    keys=Keys(keyed=True),
    signs=(Signs(("<|tools_prefix|>", "<|tools_suffix|>")),),
)
COHERE: Final = JsonCalls(
    name="cohere_command3",
    layout=Layout(opening="<|START_ACTION|>[\n    ", between=",\n    ", closing="\n]<|END_ACTION|>"),
    begins=("<|START_ACTION|>",),
    ends=("<|END_ACTION|>",),
    keys=Keys(frozenset({"tool_name"}), frozenset({"parameters"}), frozenset({"tool_call_id"})),
    written=("tool_name", "parameters"),
    signs=(Signs(("<|START_ACTION|>",)),),
)


# GigaChat 3's formats: one JSON object in a message with a role of its own (3), or behind a token (3.1).
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


# Granite's formats: an array behind a marker (3), an object behind one each (20B function calling); 4 is
# Hermes.
GRANITE: Final = JsonCalls(
    name="granite",
    layout=Layout(opening="<|tool_call|>[", between=", ", closing="]"),
    begins=("<|tool_call|>", "<tool_call>"),
    ends=("</tool_call>",),
    signs=(Signs(("<|tool_call|>", "<|start_of_role|>")),),
)
GRANITE_20B_FC: Final = JsonCalls(
    name="granite-20b-fc",
    layout=Layout(before="<function_call> ", between="\n"),
    begins=("<function_call>",),
    signs=(Signs(("<function_call>",)),),
)


# InternLM's format: one JSON object between tokens that say which plugin it is for.
INTERNLM: Final = JsonCalls(
    name="internlm",
    layout=Layout(before="<|action_start|><|plugin|>\n", after="<|action_end|>", between="\n"),
    begins=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
    ends=("<|action_end|>",),
    special=frozenset({"<|action_start|>", "<|plugin|>", "<|action_end|>"}),
    written=("name", "parameters"),
    signs=(Signs(("<|action_start|>", "<|plugin|>")),),
)


# Llama 3's JSON: bare at the beginning of the answer or behind a marker, several between semicolons.
_ASKED: Final = '{"name": function name, "parameters": dictionary of argument name and its value}'

LLAMA3_JSON: Final = JsonCalls(
    name="llama3_json",
    layout=Layout(between="; "),
    begins=("<|python_tag|>",),
    bare="{[",
    written=("name", "parameters"),
    signs=(
        Signs(("<|python_tag|>",), ("<function=", "<tool_call>", "<|tool_call>")),
        Signs((_ASKED,), ("<tool_call>",)),
    ),
)


# xLAM's formats: an array of JSON objects, bare, in a fence or in tags.
XLAM: Final = JsonCalls(
    name="xlam",
    layout=Layout(opening="[", between=", ", closing="]"),
    begins=("<tool_call>", "[TOOL_CALLS]"),
    guesses=("```",),
    infixes=("json",),
    ends=("</tool_call>", "```"),
    bare="[",
    special=frozenset({"<tool_call>", "</tool_call>"}),
    signs=(Signs(("xlam",)),),
)


# For models whose template knows no tools: Hermes' tags, and JSON in a fence or bare that looks like a call.
PLAIN: Final = JsonCalls(
    name="plain",
    layout=Layout(before="<tool_call>\n", after="\n</tool_call>", between="\n"),
    begins=("<tool_call>",),
    guesses=("```",),
    infixes=("json",),
    ends=("</tool_call>", "```"),
    bare="{[",
    wary=True,
)
