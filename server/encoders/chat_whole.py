"""A generation as one chat completion."""

from msgspec import UNSET

from stentor.protocols.openai.chat import (
    AssistantMessage,
    CalledCustom,
    CalledFunction,
    ChatChoice,
    ChatResponse,
    CustomToolCall,
    FunctionToolCall,
)
from stentor.protocols.openai.usage import Usage

from .chat_shape import ChatShape, call_id
from .collect import Call, Choice, Generation
from .logprobs import chat_logprobs, prompt_logprobs


def chat_response(shape: ChatShape, generation: Generation) -> ChatResponse:
    """``generation`` was collected with thoughts or without, as ``shape`` says."""
    wanted = shape.prompt_logprobs
    return ChatResponse(
        id=shape.response_id,
        created=shape.created,
        model=shape.model,
        choices=[_choice(shape, index, choice) for index, choice in enumerate(generation.choices)],
        usage=Usage.of(
            len(shape.prompt), generation.completion_tokens, generation.cached_tokens, generation.reasoning_tokens
        ),
        prompt_logprobs=(
            UNSET if wanted is None else prompt_logprobs(generation.prompt_logprobs or [], shape.names, wanted)
        ),
        prompt_token_ids=shape.prompt if shape.token_ids else UNSET,
    )


def _choice(shape: ChatShape, index: int, choice: Choice) -> ChatChoice:
    finish = choice.finish
    assert finish is not None
    top = shape.top_logprobs
    return ChatChoice(
        index=index,
        message=_message(shape, choice),
        logprobs=None if top is None else chat_logprobs(choice.logprobs, shape.names, top),
        finish_reason=shape.finish_reason(finish, bool(choice.calls), bool(choice.calls) and choice.calls[-1].ended),
        stop_reason=finish.stop_reason,
        token_ids=choice.tokens if shape.token_ids else UNSET,
    )


def _message(shape: ChatShape, choice: Choice) -> AssistantMessage:
    text, calls = choice.text, choice.calls
    content = text if text or not calls else None
    reasoning = choice.thoughts or UNSET
    if calls and shape.tools.legacy:
        called = CalledFunction(calls[0].name, calls[0].arguments)
        return AssistantMessage(content, reasoning=reasoning, reasoning_content=reasoning, function_call=called)
    tool_calls = [_call(shape, call) for call in calls] or UNSET
    return AssistantMessage(content, reasoning=reasoning, reasoning_content=reasoning, tool_calls=tool_calls)


def _call(shape: ChatShape, call: Call) -> FunctionToolCall | CustomToolCall:
    if call.name in shape.tools.custom:
        return CustomToolCall(call_id(call.id), CalledCustom(call.name, call.arguments))
    return FunctionToolCall(call_id(call.id), CalledFunction(call.name, call.arguments))
