"""Formats that write calls as JSON objects between markers."""

from typing import Any, Final

from msgspec.structs import replace

from .call_objects import Keys
from .json_calls import JsonCalls
from .layout import Layout, Signs


def _tagged(name: str, begin: str, end: str, *, array: bool = False, **more: Any) -> JsonCalls:
    """Each object between two tags, on lines of their own; or an array of them between the two."""
    layout = Layout(before=f"{begin}\n", after=f"\n{end}", between="\n")
    if array:
        layout = Layout(opening=f"{begin}[", between=", ", closing=f"]{end}")
    return JsonCalls(name=name, layout=layout, begins=(begin,), ends=(end,), **{"signs": (Signs((begin,)),), **more})


_ROLE: Final = "function call<|role_sep|>\n"
_GIGACHAT31: Final = JsonCalls(
    name="gigachat31",
    layout=Layout(before="<|function_call|>", after="<|message_sep|>", between="\n\n"),
    begins=("<|function_call|>", _ROLE),
    ends=("<|message_sep|>", "</s>"),
    dropped=frozenset({"<|message_sep|>"}),
    special=frozenset({"<|role_sep|>", "<|function_call|>", "<|message_sep|>"}),
    signs=(Signs(("<|message_sep|>", "<|function_call|>")),),
)
MESSAGE_FORMATS: Final = (
    # GigaChat 3.1 writes the object behind a token, GigaChat 3 in a message with a role of its own
    _GIGACHAT31,
    replace(
        _GIGACHAT31,
        name="gigachat3",
        layout=Layout(before=_ROLE, after="<|message_sep|>", between="\n\n"),
        begins=(_ROLE, "<|function_call|>"),
        signs=(Signs(("<|message_sep|>", "function call")),),
    ),
    JsonCalls(
        name="inkling",
        layout=Layout(before="<|content_invoke_tool_json|>", after="<|end_message|>", between="<|message_model|>"),
        begins=("<|content_invoke_tool_json|>",),
        ends=("<|end_message|>", "<|content_model_end_sampling|>"),
        dropped=frozenset({"<|message_model|>", "<|content_text|>"}),
        keys=Keys(arguments=frozenset({"args", "arguments", "parameters"})),
        written=("name", "args"),
        signs=(Signs(("<|content_invoke_tool_json|>",)),),
    ),
    # between tokens that say which plugin an object is for
    JsonCalls(
        name="internlm",
        layout=Layout(before="<|action_start|><|plugin|>\n", after="<|action_end|>", between="\n"),
        begins=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
        ends=("<|action_end|>",),
        special=frozenset({"<|action_start|>", "<|plugin|>", "<|action_end|>"}),
        written=("name", "parameters"),
        signs=(Signs(("<|action_start|>", "<|plugin|>")),),
    ),
)
"""Formats of models that write a call as a separate message."""

_OTHERS: Final = (
    "<function=", "<arg_key>", "<TOOLCALL>", "<seed:tool_call>", "<|tool_call>", "<invoke", "minimax",
)  # fmt: skip
_ASKED: Final = '{"name": function name, "parameters": dictionary of argument name and its value}'
FORMATS: Final = (
    _tagged(
        "apertus",
        "<|tools_prefix|>",
        "<|tools_suffix|>",
        array=True,
        keys=Keys(keyed=True),
        signs=(Signs(("<|tools_prefix|>", "<|tools_suffix|>")),),
    ),
    JsonCalls(
        name="cohere_command3",
        layout=Layout(opening="<|START_ACTION|>[\n    ", between=",\n    ", closing="\n]<|END_ACTION|>"),
        begins=("<|START_ACTION|>",),
        ends=("<|END_ACTION|>",),
        keys=Keys(frozenset({"tool_name"}), frozenset({"parameters"}), frozenset({"tool_call_id"})),
        written=("tool_name", "parameters"),
        signs=(Signs(("<|START_ACTION|>",)),),
    ),
    _tagged("nemotron", "<TOOLCALL>", "</TOOLCALL>", array=True),
    # an array, bare, in a fence or in tags
    JsonCalls(
        name="xlam",
        layout=Layout(opening="[", between=", ", closing="]"),
        begins=("<tool_call>", "[TOOL_CALLS]"),
        guesses=("```",),
        infixes=("json",),
        ends=("</tool_call>", "```"),
        bare="[",
        special=frozenset({"<tool_call>", "</tool_call>"}),
        signs=(Signs(("xlam",)),),
    ),
    JsonCalls(
        name="granite",
        layout=Layout(opening="<|tool_call|>[", between=", ", closing="]"),
        begins=("<|tool_call|>", "<tool_call>"),
        ends=("</tool_call>",),
        signs=(Signs(("<|tool_call|>", "<|start_of_role|>")),),
    ),
    JsonCalls(
        name="granite-20b-fc",
        layout=Layout(before="<function_call> ", between="\n"),
        begins=("<function_call>",),
        signs=(Signs(("<function_call>",)),),
    ),
    JsonCalls(
        name="phi4_mini_json",
        layout=Layout(opening="functools[", between=", ", closing="]"),
        begins=("functools", "<|tool_call|>"),
        infixes=("functools",),
        ends=("<|/tool_call|>",),
        signs=(Signs(("<|tool|>", "<|/tool|>")), Signs((" functools[",))),
    ),
    # K2 Horizon's calls where its template is asked for JSON
    replace(
        _tagged("k2_horizon_json", "<ifm|tool_call>", "</ifm|tool_call>", signs=()),
        layout=Layout(
            opening="<ifm|tool_calls>",
            before="<ifm|tool_call>",
            after="</ifm|tool_call>",
            closing="</ifm|tool_calls>",
        ),
        begins=("<ifm|tool_calls>", "<ifm|tool_call>"),
        infixes=("<ifm|tool_call>",),
        ends=("</ifm|tool_call>", "</ifm|tool_calls>"),
    ),
    _tagged("longcat", "<longcat_tool_call>", "</longcat_tool_call>"),
    # also Hunyuan A13B and Apriel
    _tagged(
        "jamba",
        "<tool_calls>",
        "</tool_calls>",
        array=True,
        signs=(
            Signs(("<tool_calls>[",), ("<beginning_of_sentence>",)),
            Signs(("<tool_calls>",), ("<beginning_of_sentence>", "<tool_call>", "｜DSML｜")),
        ),
    ),
    _tagged(
        "ernie45",
        "<tool_call>",
        "</tool_call>",
        dropped=frozenset({"<response>", "</response>"}),
        signs=(Signs(("<tool_call>", "<response>"), ("minimax",)),),
    ),
    # which Qwen, Granite 4 and many others took over
    _tagged("hermes", "<tool_call>", "</tool_call>", signs=(Signs(("<tool_call>",), _OTHERS),)),
    # bare or behind a marker, several between semicolons
    JsonCalls(
        name="llama3_json",
        layout=Layout(between="; "),
        begins=("<|python_tag|>",),
        bare="{[",
        within="{",
        written=("name", "parameters"),
        signs=(
            Signs(("<|python_tag|>",), ("<function=", "<tool_call>", "<|tool_call>")),
            Signs((_ASKED,), ("<tool_call>",)),
        ),
    ),
    # for models whose template knows no tools: Hermes' tags, and JSON in a fence or bare that looks like a call
    replace(
        _tagged("plain", "<tool_call>", "</tool_call>", signs=()),
        guesses=("```",),
        infixes=("json",),
        ends=("</tool_call>", "```"),
        bare="{[",
        wary=True,
    ),
)
