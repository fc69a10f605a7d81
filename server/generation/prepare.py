"""From a request for chat to typed deltas: the path of every protocol.

A protocol translates its request into a :class:`ChatRequest`, calls :func:`prepare_generation`, and encodes the deltas
of the :class:`PreparedGeneration`. Errors name the fields of chat completions; :mod:`.error_fields` maps them to those
of the client's protocol.
"""

from collections.abc import Mapping

import msgspec

from stentor.engine.model_config.towers.media_spec import Modality
from stentor.protocols.ipc.deltas import Delta
from stentor.protocols.ipc.steps import ExpertShape
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.tools import ToolUse, tool_use

from ..common.keys import Caller
from ..http.sse import Batches
from ..overload.memory_budget import MemoryShare
from ..overload.request_context import RequestContext
from .admission import (
    PLAIN,
    Budget,
    GenerationOptions,
    check_prompt,
    context_length,
    kept_tokens,
    most_prompt_tokens,
    most_tokens_of,
    resolve_sampling,
)
from .bad_words import with_bad_words
from .biases import token_biases
from .chat_model import ChatModel
from .constraints import constraints_of, thinking_opened
from .logprobs import TokenNames
from .prompt import Prompted, write_prompt
from .routed_experts import check_start, expert_shape, first_position
from .stream import ObservedGeneration, generation_request


class PreparedGeneration(msgspec.Struct, frozen=True):
    """Data that an encoder needs for a running answer."""

    model: str
    """The model name of the request."""
    prompt: list[int]
    n: int
    names: TokenNames
    max_tokens: int
    """Most tokens of each choice."""
    experts: ExpertShape | None
    """Shape of the experts returned for each token; None: not returned."""
    tools: ToolUse
    media_tokens: Mapping[Modality, int]
    """Prompt tokens of media, by modality."""
    batches: Batches[list[Delta]]
    """Goes to the engine when iterating begins; must be closed."""


async def prepare_generation(
    chat: ChatModel, body: ChatRequest, caller: Caller, context: RequestContext, options: GenerationOptions = PLAIN
) -> PreparedGeneration:
    """Checks and renders a conversation, and admits it.

    Raises BadRequest for a request that cannot be served, Unavailable before the engine is ready, and Overloaded.
    """
    body.check(chat.limits)
    model = chat.resolve(body.model)
    memory = context.queue_slot.memory
    wanted_tokens = None if options.fill_context else body.wanted_tokens
    budget = Budget(wanted_tokens, body.wanted_tokens, body.max_tokens_field, "messages")
    use = tool_use(body, chat.limits)
    prompted = await _write_prompt(chat, body, use, budget, memory, begins_answer=options.begins_answer)
    prompt, media = prompted.tokens, prompted.media
    experts = first_position(chat, body, wanted_tokens=body.wanted_tokens) if options.tells_experts else None
    check_start(experts, len(prompt))
    params = resolve_sampling(
        body,
        chat,
        most_tokens_of(chat, body, budget, prompt, options, experts),
        logprobs=body.wanted_logprobs,
        prompt_logprobs=body.prompt_logprobs,
        biases=await token_biases(chat, body),
        routed_experts=experts,
    )
    params = await with_bad_words(chat, params, body.bad_words, memory)
    wanted = generation_request(
        body,
        prompt,
        params,
        caller,
        await constraints_of(chat, body, use, prompt, prompted.thinking),
        media.spans,
        chat.registry.adapter_of(model),
        priority=context.priority(body.priority),
    )
    began = context.arrival if options.arrival is None else options.arrival
    batches = ObservedGeneration(chat, wanted, began, context.queue_slot, options.client, media_bytes=media.held)
    return PreparedGeneration(
        model=model,
        prompt=prompt,
        n=body.choices,
        names=TokenNames(chat.pool.tokenizer, bool(body.return_tokens_as_token_ids)),
        max_tokens=params.max_tokens,
        experts=None if experts is None else expert_shape(chat),
        tools=use,
        media_tokens=media.tokens,
        batches=batches,
    )


async def _write_prompt(
    chat: ChatModel, body: ChatRequest, use: ToolUse, budget: Budget, memory: MemoryShare, *, begins_answer: bool
) -> Prompted:
    """The prompt as ``truncate_prompt_tokens`` keeps it, checked; with ``begins_answer`` to the first word of an
    answer. Raises as :func:`prepare_generation`."""
    max_len = context_length(chat)
    most_tokens = most_prompt_tokens(chat) if body.truncate_prompt_tokens is None else None
    written = await write_prompt(chat, body, use, most_tokens, memory)
    tokens = written.tokens
    if begins_answer:
        opened = thinking_opened(chat, body, tokens, written.thinking)
        tokens = tokens + await chat.pool.encode(chat.output.answer_begins(opened=opened), False)
    first, end = kept_tokens(len(tokens), body, budget, max_len)
    prompt = tokens[first:end]
    check_prompt(prompt, chat, "messages")
    return Prompted(prompt, written.thinking, written.media.within(first, end))


async def prompt_of(chat: ChatModel, body: ChatRequest, memory: MemoryShare | None = None) -> list[int]:
    """Tokens of a conversation that is not answered, without a limit on their number; its media are counted in
    ``memory``. Raises BadRequest."""
    body.check(chat.limits)
    chat.resolve(body.model)
    return (await write_prompt(chat, body, tool_use(body, chat.limits), None, memory)).tokens
