"""DeepSeek-V3.2: its conversations are defined by code beside the weights, not by a template.

The format, and the words in which tools are explained (the model was trained on them), are those of ``encoding_dsv32``
in the model's repository. A call is an ``invoke`` element in the model's own markup, each argument a ``parameter``.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from ..errors import TemplateError
from .interface import RenderRequest
from .plain import called, flat_messages, functions, reasoning_of, refuse_template

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
THINK: Final = "<think>"
END_THINK: Final = "</think>"
DSML: Final = "｜DSML｜"

_TOOLS: Final = f"""## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<{DSML}function_calls>" block like the following as part of your reply to the user:
<{DSML}function_calls>
<{DSML}invoke name="$FUNCTION_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$FUNCTION_NAME2">
...
</{DSML}invoke>
</{DSML}function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<{DSML}function_calls>
...
</{DSML}function_calls>
<function_results>
...
</function_results>
{THINK}...thinking about results{END_THINK}
Here are the functions available in JSONSchema format:
<functions>
{{schemas}}
</functions>
"""  # noqa: E501 - the model's words, line by line


MARKS: Final = f"{USER}{ASSISTANT}{THINK}{END_THINK}{_TOOLS}"
"""Stands for the source of a template, by which parsers are chosen."""


def write(conversation: RenderRequest) -> str:
    """The prompt's text. The model thinks if ``thinking`` or ``enable_thinking`` of ``template_kwargs`` is true. Raises
    TemplateError."""
    refuse_template(conversation, "deepseek_v32")
    kwargs = conversation.template_kwargs
    thinking = bool(kwargs.get("thinking") or kwargs.get("enable_thinking"))
    messages = flat_messages(conversation)
    last_asked = max((i for i, m in enumerate(messages) if m["role"] in ("user", "developer")), default=-1)
    text = [BOS]
    if conversation.tools:
        text.append("\n\n" + _explain(functions(conversation.tools)))
    for index, message in enumerate(messages):
        goes_on = conversation.continue_final_message and index == len(messages) - 1
        match message["role"]:
            case "system":
                text.append(message["content"])
            case "user" | "developer":
                text.append(_asked(message, thinking and index == last_asked))
            case "tool":
                text.append(_result(messages, index, thinking and index >= last_asked))
            case "assistant":
                text.append(_answered(message, thinking and index > last_asked, goes_on))
            case role:
                raise TemplateError(f"messages[{index}].role is {role!r}, which DeepSeek-V3.2 does not know.")
    return "".join(text)


def _explain(tools: Sequence[dict[str, Any]]) -> str:
    return _TOOLS.replace("{schemas}", "\n".join(_json(tool) for tool in tools))


def _asked(message: dict[str, Any], thinks: bool) -> str:
    content = message["content"]
    if message["role"] == "developer":
        content = f"\n\n# The user's message is: {content}"
    return f"{USER}{content}{ASSISTANT}{THINK if thinks else END_THINK}"


def _result(messages: Sequence[dict[str, Any]], index: int, thinks: bool) -> str:
    """A tool's result; results of one message's calls are adjacent."""
    asked = index - 1
    while asked >= 0 and messages[asked]["role"] == "tool":
        asked -= 1
    calls = messages[asked].get("tool_calls") or () if asked >= 0 else ()
    place = index - asked
    if place > len(calls):
        raise TemplateError(f"messages[{index}] is a tool's answer, but no call before it waits for one.")
    text = "\n\n<function_results>" if place == 1 else ""
    text += f"\n<result>{messages[index]['content']}</result>"
    if place == len(calls):
        text += f"\n</function_results>\n\n{THINK if thinks else END_THINK}"
    return text


def _answered(message: dict[str, Any], thinks: bool, goes_on: bool) -> str:
    """Reasoning before the last question is not repeated."""
    calls = invoked(message)
    if goes_on and calls:
        raise TemplateError("continue_final_message is set, but the last message ends with calls of tools.")
    text = reasoning_of(message) + END_THINK if thinks else ""
    text += str(message["content"])
    if goes_on:
        return text
    if calls:
        text += f"\n\n<{DSML}function_calls>\n" + "\n".join(calls) + f"\n</{DSML}function_calls>"
    return text + EOS


def invoked(message: dict[str, Any], mark: str = DSML) -> list[str]:
    """The calls of a message, V4's and V4.1's too; ``mark``: what their tags begin with. Raises TemplateError for
    arguments that are no object."""
    return [
        f'<{mark}invoke name="{name}">\n{_parameters(arguments, mark)}\n</{mark}invoke>'
        for name, arguments in called(message)
    ]


def _parameters(arguments: dict[str, Any], mark: str) -> str:
    return "\n".join(
        f'<{mark}parameter name="{name}" string="{"true" if isinstance(value, str) else "false"}">'
        f"{value if isinstance(value, str) else _json(value)}</{mark}parameter>"
        for name, value in arguments.items()
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
