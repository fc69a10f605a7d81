"""Results for programs."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

TokenName = Callable[[int], str]
"""The text of a token."""
_ID: Final = len("token_id:")


class ShownLogprobs(NamedTuple):
    """What a response shows of log-probabilities."""

    top: int | None
    """The likeliest alternatives at each token, the best first; None: tokens that were requested by id."""
    name: TokenName


class Logprob(msgspec.Struct, frozen=True, kw_only=True):
    logprob: float
    rank: int | None
    """1 is the likeliest token; None for a sampled token that is not among the requested alternatives, and for tokens
    that were requested by id."""
    decoded_token: str


Logprobs = dict[int, Logprob]
"""At one position, by token id: the token itself first, then the alternatives."""


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
    cumulative_logprob: float | None = None
    """The sum of the tokens' log-probabilities, if those were requested."""
    logprobs: list[Logprobs | None] | None = None
    """For each token, with as many alternatives as requested."""
    reasoning: str | None = None
    tool_calls: list[ToolCallOutput] = []


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the answer to one prompt, in seconds. Only differences of the ``…_ts`` mean something."""

    num_generation_tokens: int
    first_token_latency: float
    """From the engine's queue to the first token."""
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """All continuations of one prompt."""

    request_id: str
    prompt: str | None
    """The given text; None for tokens or a conversation."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[Logprobs | None] | None = None
    """For each token of the prompt; None for the first."""
    metrics: RequestMetrics | None = None
    """None with ``n`` above 1."""
    finished: bool = True
    """Results are whole: there are no others."""


def from_completion(body: dict[str, Any], prompt: str | None, shown: ShownLogprobs) -> RequestOutput:
    """From a response of ``/v1/completions`` to one prompt, with token ids, also in place of tokens' texts."""
    choices = body["choices"]
    return RequestOutput(
        request_id=body["id"],
        prompt=prompt,
        prompt_token_ids=choices[0]["prompt_token_ids"],
        outputs=[_output(choice, choice["text"], _of_lists(choice, shown)) for choice in choices],
        num_cached_tokens=_cached(body),
        prompt_logprobs=_of_prompt(choices[0].get("prompt_logprobs"), shown.name),
        metrics=_metrics(body),
    )


def from_chat(body: dict[str, Any], shown: ShownLogprobs) -> RequestOutput:
    """From a response of ``/v1/chat/completions``, as :func:`from_completion`."""
    return RequestOutput(
        request_id=body["id"],
        prompt=None,
        prompt_token_ids=body["prompt_token_ids"],
        outputs=[_from_message(choice, shown) for choice in body["choices"]],
        num_cached_tokens=_cached(body),
        prompt_logprobs=_of_prompt(body.get("prompt_logprobs"), shown.name),
        metrics=_metrics(body),
    )


def _of_lists(choice: dict[str, Any], shown: ShownLogprobs) -> list[Logprobs | None] | None:
    lists = choice.get("logprobs")
    if lists is None:
        return None
    return [
        None if value is None else _position(token, value, alternatives.items(), shown)
        for token, value, alternatives in zip(
            lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True
        )
    ]


def _of_messages(choice: dict[str, Any], shown: ShownLogprobs) -> list[Logprobs | None] | None:
    if choice.get("logprobs") is None:
        return None
    return [
        _position(
            each["token"],
            each["logprob"],
            [(other["token"], other["logprob"]) for other in each["top_logprobs"]],
            shown,
        )
        for each in choice["logprobs"]["content"]
    ]


def _position(token: str, value: float, alternatives: Iterable[tuple[str, float]], shown: ShownLogprobs) -> Logprobs:
    """``alternatives`` beyond ``shown.top`` are the token itself."""
    name = shown.name
    found = {int(token[_ID:]): Logprob(logprob=value, rank=None, decoded_token=name(int(token[_ID:])))}
    for rank, (other, other_value) in enumerate(alternatives, start=1):
        if shown.top is None or rank <= shown.top:
            id = int(other[_ID:])
            ranked = None if shown.top is None else rank
            found[id] = Logprob(logprob=other_value, rank=ranked, decoded_token=name(id))
    return found


def _of_prompt(positions: list[dict[str, Any] | None] | None, name: TokenName) -> list[Logprobs | None] | None:
    if positions is None:
        return None
    return [
        None
        if position is None
        else {
            int(id): Logprob(logprob=found["logprob"], rank=found["rank"], decoded_token=name(int(id)))
            for id, found in position.items()
        }
        for position in positions
    ]


def _from_message(choice: dict[str, Any], shown: ShownLogprobs) -> CompletionOutput:
    message = choice["message"]
    return _output(
        choice,
        message.get("content") or "",
        _of_messages(choice, shown),
        reasoning=message.get("reasoning"),
        tool_calls=[
            ToolCallOutput(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
            if "function" in call
        ],
    )


def _output(choice: dict[str, Any], text: str, logprobs: list[Logprobs | None] | None, **more: Any) -> CompletionOutput:
    total = None
    if logprobs is not None:
        total = sum(next(iter(position.values())).logprob for position in logprobs if position is not None)
    return CompletionOutput(
        index=choice["index"],
        text=text,
        token_ids=choice["token_ids"],
        finish_reason=choice["finish_reason"],
        stop_reason=choice.get("stop_reason"),
        cumulative_logprob=total,
        logprobs=logprobs,
        **more,
    )


def _metrics(body: dict[str, Any]) -> RequestMetrics | None:
    """The last token came about now."""
    given = body.get("metrics")
    if given is None:
        return None
    waited, prefill = given["queue_time_ms"] / 1000, given["time_to_first_token_ms"] / 1000
    last = time.monotonic()
    first = last - given["generation_time_ms"] / 1000
    return RequestMetrics(
        num_generation_tokens=body["usage"]["completion_tokens"],
        first_token_latency=waited + prefill,
        queued_ts=first - prefill - waited,
        scheduled_ts=first - prefill,
        first_token_ts=first,
        last_token_ts=last,
    )


def _cached(body: dict[str, Any]) -> int:
    details = body["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)
