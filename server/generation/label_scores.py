"""Scores items by the probabilities of named next tokens, each in a generation of one token."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from stentor.protocols.common.bounds import items_at_most, total_chars_at_most
from stentor.protocols.openai.completions import CompletionRequest
from stentor.protocols.openai.label_scores import LabelFields, LabelUsage

from ..common.keys import Caller
from ..common.task_scope import run_together
from ..overload.request_context import RequestContext
from .chat_model import ChatModel
from .completion import PromptJob, prepare_completion
from .error_fields import map_error_fields
from .next_token import next_token

_NAMES = {"prompt": "items", "logprob_token_ids": "label_token_ids"}


class LabelScores(msgspec.Struct, frozen=True):
    model: str
    probabilities: list[list[float]]
    """Of each item, one for each label."""
    usage: LabelUsage


async def label_scores(
    chat: ChatModel,
    body: LabelFields,
    caller: Caller,
    context: RequestContext,
    *,
    among_labels: bool,
    special_tokens: bool = True,
) -> LabelScores:
    """The probabilities of the labels behind each item, by the model's own distribution.

    ``among_labels``: of a softmax over the labels alone. ``special_tokens``: before a query that is a text. Raises as
    :func:`.completion.prepare_completion`.
    """
    body.check()
    request = CompletionRequest(
        model=body.model,
        prompt=await _prompts(chat, body, special_tokens),
        max_tokens=1,
        logprobs=1,
        logprob_token_ids=body.label_token_ids,
        post_sampling_probs=False,
        ignore_eos=True,
        seed=0,
        cache_salt=body.cache_salt,
        priority=body.priority,
    )
    with map_error_fields(_NAMES):
        request.check(chat.limits)
        prepared = await prepare_completion(chat, request, caller, context)
    jobs = prepared.jobs
    found: list[list[float]] = [[] for _ in jobs]

    async def read(index: int, job: PromptJob) -> None:
        logprobs = (await next_token(job.batches)).logprobs
        found[index] = [logprobs[label] for label in body.label_token_ids]

    await run_together(partial(read, *each) for each in enumerate(jobs))
    prompt = sum(len(job.prompt.tokens) for job in jobs)
    usage = LabelUsage(prompt, prompt + len(jobs), len(jobs))
    return LabelScores(prepared.model, [_probabilities(each, among_labels) for each in found], usage)


async def _prompts(chat: ChatModel, body: LabelFields, special_tokens: bool) -> list[str | int | list[int]]:
    """The tokens of each prompt: query and item are tokenised apart."""
    items = body.each_item
    items_at_most(items, chat.limits.max_prompts, "items")
    texts = [item for item in items if isinstance(item, str)]
    total_chars_at_most(sum(map(len, texts)), chat.limits.max_prompt_chars, "items")
    query = body.query
    if isinstance(query, str):
        (query,) = await chat.pool.encode_batch([query], special_tokens, field="query")
    encoded = iter(await chat.pool.encode_batch(texts, False, field="items"))
    behind = [next(encoded) if isinstance(item, str) else item for item in items]
    return [item + query if body.item_first else query + item for item in behind]


def _probabilities(logprobs: Sequence[float], among: bool) -> list[float]:
    raised: list[Any] = [math.exp(each - (max(logprobs) if among else 0.0)) for each in logprobs]
    total = sum(raised) if among else 1.0
    return [each / total for each in raised]
