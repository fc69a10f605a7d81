"""Results for programs."""

from typing import Any

import msgspec


class ToolCallOutput(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    arguments: str
    """JSON."""


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None = None
    logprobs: Any = None
    """In the shape of the endpoint: completions' for ``generate``, chat's for ``chat``."""
    reasoning: str | None = None
    tool_calls: list[ToolCallOutput] = []


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """All continuations of one prompt."""

    request_id: str
    prompt: str | None
    """The given text; None for tokens or a conversation."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: Any = None


def from_completion(body: dict[str, Any], prompt: str | None) -> RequestOutput:
    """From a response of ``/v1/completions`` to one prompt, with token ids."""
    choices = body["choices"]
    return RequestOutput(
        request_id=body["id"],
        prompt=prompt,
        prompt_token_ids=choices[0]["prompt_token_ids"],
        outputs=[_output(choice, choice["text"]) for choice in choices],
        num_cached_tokens=_cached(body),
        prompt_logprobs=choices[0].get("prompt_logprobs"),
    )


def from_chat(body: dict[str, Any]) -> RequestOutput:
    """From a response of ``/v1/chat/completions`` with token ids."""
    return RequestOutput(
        request_id=body["id"],
        prompt=None,
        prompt_token_ids=body["prompt_token_ids"],
        outputs=[_from_message(choice) for choice in body["choices"]],
        num_cached_tokens=_cached(body),
        prompt_logprobs=body.get("prompt_logprobs"),
    )


def _from_message(choice: dict[str, Any]) -> CompletionOutput:
    message = choice["message"]
    return _output(
        choice,
        message.get("content") or "",
        reasoning=message.get("reasoning"),
        tool_calls=[
            ToolCallOutput(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
            if "function" in call
        ],
    )


def _output(choice: dict[str, Any], text: str, **more: Any) -> CompletionOutput:
    return CompletionOutput(
        index=choice["index"],
        text=text,
        token_ids=choice["token_ids"],
        finish_reason=choice["finish_reason"],
        stop_reason=choice.get("stop_reason"),
        logprobs=choice.get("logprobs"),
        **more,
    )


def _cached(body: dict[str, Any]) -> int:
    details = body["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)
