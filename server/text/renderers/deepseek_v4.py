"""DeepSeek-V4: its conversations are defined by code beside the weights, as V3.2's are.

The format, and the words in which tools and efforts are explained (the model was trained on them), are those of
``encoding_dsv4`` in the model's repositories. Results of tools are parts of a user's message.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from ..errors import TemplateError
from .deepseek_v32 import ASSISTANT, BOS, DSML, END_THINK, EOS, THINK, USER, invoked
from .interface import RenderRequest
from .plain import flat_messages, functions, reasoning_of, refuse_template


def tools_in_words(calls: str, mark: str) -> str:
    """How tools are explained, V4.1's too; ``{schemas}`` stands for them. ``calls`` is the tag of all calls of an
    answer, ``mark`` what tags within it begin with."""
    return f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{calls}>" block like the following:

<{calls}>
<{mark}invoke name="$TOOL_NAME">
<{mark}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{mark}parameter>
...
</{mark}invoke>
<{mark}invoke name="$TOOL_NAME2">
...
</{mark}invoke>
</{calls}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside {THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

{{schemas}}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""  # noqa: E501 - the model's words, line by line


_CALLS: Final = f"{DSML}tool_calls"
_TOOLS: Final = tools_in_words(_CALLS, DSML)
_HIGH: Final = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_MAX: Final = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose "
    "the problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
EFFORTS: Final = {"high": _HIGH, "xhigh": _MAX, "max": _MAX}
"""What stands before a conversation in which the model thinks; nothing for other efforts, or without one."""
MARKS: Final = f"{USER}{ASSISTANT}{_TOOLS}"
"""Stands for the source of a template, by which parsers are chosen."""

_Message = dict[str, Any]


def write(conversation: RenderRequest) -> str:
    """The prompt's text. The model thinks unless ``thinking`` or ``enable_thinking`` of ``template_kwargs`` is false;
    what it thought before the last question is left out if there are no tools. Raises TemplateError."""
    refuse_template(conversation, "deepseek_v4")
    kwargs = conversation.template_kwargs
    thinks = kwargs.get("thinking", kwargs.get("enable_thinking")) is not False
    messages = as_turns(flat_messages(conversation, knows_developer=False))
    asked = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    remembered = 0 if conversation.tools else asked
    text = [BOS]
    if thinks:
        text.append(EFFORTS.get(str(kwargs.get("reasoning_effort")), ""))
    if conversation.tools and messages[0]["role"] != "system":
        text.append(explained(conversation.tools, _TOOLS))
    for index, message in enumerate(messages):
        is_last = index == len(messages) - 1
        if message["role"] == "assistant":
            goes_on = conversation.continue_final_message and is_last
            text.append(answered(message, thinks and index >= remembered, goes_on))
            continue
        text.append(f"{USER}{message['content']}" if message["role"] == "user" else message["content"])
        if conversation.tools and index == 0 and message["role"] == "system":
            text.append(explained(conversation.tools, _TOOLS))
        if is_last or messages[index + 1]["role"] == "assistant":
            text.append(f"{ASSISTANT}{THINK if thinks and index >= remembered else END_THINK}")
    return "".join(text)


def explained(tools: Sequence[Any], words: str) -> str:
    """The tools, behind instructions; ``words``: see :func:`tools_in_words`."""
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in functions(tools))
    return "\n\n" + words.replace("{schemas}", schemas)


def as_turns(messages: Sequence[_Message]) -> list[_Message]:
    """Messages that follow one another as one turn, with results of tools, in the order of their calls, within the
    user's, which then has the field ``asks``: whether there is anything else."""
    turns: list[_Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        match message["role"]:
            case "system":
                turns.append(message)
                index += 1
            case "user" | "tool":
                end = _end_of_run(messages, index, ("user", "tool"))
                calls = turns[-1].get("tool_calls", ()) if turns else ()
                parts = _in_order_of_calls(messages[index:end], [call.get("id") for call in calls])
                asks = any(part["role"] == "user" for part in parts)
                turns.append({"role": "user", "content": "\n\n".join(map(_part, parts)), "asks": asks})
                index = end
            case "assistant":
                end = _end_of_run(messages, index, ("assistant",))
                turns.append(_joined(messages[index:end]))
                index = end
            case role:
                raise TemplateError(f"messages[{index}].role is {role!r}, which DeepSeek-V4 and V4.1 do not know.")
    return turns


def _end_of_run(messages: Sequence[_Message], first: int, roles: tuple[str, ...]) -> int:
    return next((i for i in range(first, len(messages)) if messages[i]["role"] not in roles), len(messages))


def _in_order_of_calls(messages: Sequence[_Message], calls: Sequence[object]) -> list[_Message]:
    """Results take the places of results; those of unknown calls come first."""
    places = {call: place for place, call in enumerate(calls)}
    results = iter(
        sorted(
            (message for message in messages if message["role"] == "tool"),
            key=lambda result: places.get(result.get("tool_call_id"), 0),
        )
    )
    return [next(results) if message["role"] == "tool" else message for message in messages]


def _part(message: _Message) -> str:
    content = str(message["content"])
    return f"<tool_result>{content}</tool_result>" if message["role"] == "tool" else content


def _joined(answers: Sequence[_Message]) -> _Message:
    """One turn, of clients that send its texts and calls as several messages."""
    if len(answers) == 1:
        return answers[0]
    calls = [call for answer in answers for call in answer.get("tool_calls", ())]
    return {
        "role": "assistant",
        "content": "\n\n".join(str(answer["content"]) for answer in answers if answer["content"]),
        "reasoning_content": "\n\n".join(filter(None, map(reasoning_of, answers))),
        **({"tool_calls": calls} if calls else {}),
    }


def answered(message: _Message, remembers: bool, goes_on: bool, calls_tag: str = _CALLS, mark: str = DSML) -> str:
    """The model's turn, with what it thought if it ``remembers`` that; tags are those of :func:`tools_in_words`."""
    calls = invoked(message, mark)
    if goes_on and calls:
        raise TemplateError("continue_final_message is set, but the last message ends with calls of tools.")
    text = (reasoning_of(message) + END_THINK if remembers else "") + str(message["content"])
    if calls:
        text += f"\n\n<{calls_tag}>\n" + "\n".join(calls) + f"\n</{calls_tag}>"
    return text if goes_on else text + EOS
