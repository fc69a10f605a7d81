"""From a request for completions to typed deltas, a generation for each of its prompts: the path of every protocol that
takes text as it is."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import anyio.to_thread
import msgspec

from stentor.engine.client.media import Media
from stentor.engine.model_config.towers.media_spec import prompt_token
from stentor.protocols.common.bounds import TOKEN_ID_BYTES, TOKEN_TEXT_BYTES, AnswerSize, listed_bytes, ranked_bytes
from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.ipc.deltas import Delta, Finish, PromptLogprobs, PromptProcessed
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import ExpertShape
from stentor.protocols.openai.completions import CompletionRequest
from stentor.protocols.openai.completions import Prompt as RawPrompt
from stentor.protocols.openai.sampling import check_token_ids
from stentor.protocols.openai.structured import wanted_answer

from ..common.keys import Caller
from ..http.sse import Batches
from ..media.chat_media import PlacedMedia, held
from ..media.refusal import Refusal
from ..overload.memory_budget import MemoryShare, params_bytes
from ..overload.request_context import RequestContext
from ..text.errors import TextTooLong
from .admission import (
    Budget,
    check_prompt,
    context_length,
    kept_tokens,
    most_prompt_tokens,
    output_room,
    resolve_sampling,
    too_long,
)
from .bad_words import with_bad_words
from .biases import token_biases
from .chat_model import ChatModel
from .constraints import Constraints, answer_constraints
from .logprobs import TokenNames
from .routed_experts import check_start, expert_bytes, expert_shape, first_position
from .stream import ObservedGeneration, generation_request

DEFAULT_MAX_TOKENS: Final = 16


class Prompt(msgspec.Struct, frozen=True):
    """One prompt of a request."""

    index: int
    tokens: list[int]
    echo: str | None
    """The prompt's text, if the answer begins with it."""


class PromptJob(msgspec.Struct, frozen=True):
    prompt: Prompt
    max_tokens: int
    """Delivered tokens of each choice."""
    batches: Batches[list[Delta]]
    generation: ObservedGeneration | None = None
    """What makes the batches; None: nothing is generated."""


class PreparedCompletion(msgspec.Struct, frozen=True):
    """Data that an encoder needs for the answers of a running request."""

    model: str
    """The model name of the request."""
    names: TokenNames
    experts: ExpertShape | None
    """Shape of the experts returned for each token; None: not returned."""
    jobs: list[PromptJob]
    """One for each prompt; their batches must be closed."""


async def prepare_completion(
    chat: ChatModel,
    body: CompletionRequest,
    caller: Caller,
    context: RequestContext,
    *,
    fill_context: bool = False,
) -> PreparedCompletion:
    """Reads the prompts of a checked request and admits them. With a suffix, the model fills in the text between prompt
    and suffix.

    By default an answer has :data:`DEFAULT_MAX_TOKENS`, with ``fill_context`` as many as the context has room for, to
    which larger numbers are reduced too. Raises BadRequest for a request that cannot be served, Unavailable before the
    engine is ready, and Overloaded.
    """
    model = chat.resolve(body.model)
    if chat.picture is not None:
        raise refused("prompt", "the model writes about a picture, which chat completions take", "unsupported")
    if body.suffix:
        body = infill_prompts(chat, body, body.suffix)
    raw = body.prompts
    given = [_Given(None, *each) for each in await _embedded(chat, body, context.queue_slot.memory)]
    given += map(_Given, raw, await _encode(chat, body, raw))
    decoder_prompt = await _decoder_prompt(chat, body)
    constraints = await answer_constraints(chat, wanted_answer(body, chat.limits))
    experts = first_position(chat, body, wanted_tokens=body.max_tokens)
    budget = Budget(body.max_tokens, DEFAULT_MAX_TOKENS, body.max_tokens_field, "prompt")
    if fill_context:
        budget = Budget(None, body.max_tokens, "max_tokens", "prompt")
    params = _SharedParams(chat, body, context, experts)
    request = _Request(chat, body, caller, context, constraints, budget, params, decoder_prompt)
    jobs = [await _job(request, index, prompt) for index, prompt in enumerate(given)]
    _check_answer(chat, body, jobs, experts)
    return PreparedCompletion(
        model,
        TokenNames(chat.pool.tokenizer, bool(body.return_tokens_as_token_ids)),
        None if experts is None else expert_shape(chat),
        jobs,
    )


async def prompts_of(chat: ChatModel, body: CompletionRequest) -> list[list[int]]:
    """Tokens of the prompts of a checked request that is not answered. Raises as :func:`prepare_completion`."""
    chat.resolve(body.model)
    if body.embedded:
        raise refused("prompt_embeds", "embeddings have no tokens", "unsupported")
    if body.suffix:
        body = infill_prompts(chat, body, body.suffix)
    budget, context = Budget(body.max_tokens, DEFAULT_MAX_TOKENS, body.max_tokens_field, "prompt"), context_length(chat)
    prompts = []
    for tokens in await _encode(chat, body, body.prompts):
        first, end = kept_tokens(len(tokens), body, budget, context)
        check_prompt(tokens[first:end], chat, "prompt")
        output_room(end - first, budget, chat)
        prompts.append(tokens[first:end])
    return prompts


def infill_prompts(chat: ChatModel, body: CompletionRequest, after: str) -> CompletionRequest:
    """Replaces the prompts by those that ask for the text between each prompt and ``after``. Raises BadRequest if the
    model has no tokens for that."""
    infill = chat.infill
    if infill is None:
        raise refused("suffix", "the model has no tokens to fill in the middle of a text; leave it out", "unsupported")
    prompts = [infill.prompt(text, after) for text in body.prompts if isinstance(text, str)]
    stops = sorted({*(body.stop_token_ids or ()), *infill.ends})
    return msgspec.structs.replace(body, prompt=prompts, suffix=None, stop_token_ids=stops)


async def _embedded(chat: ChatModel, body: CompletionRequest, memory: MemoryShare) -> list[tuple[list[int], Media]]:
    """The prompts that are embeddings: tokens that stand for them, and what stands there. Raises BadRequest."""
    if not body.embedded:
        return []
    if not chat.prompt_width:
        raise refused("prompt_embeds", "prompts may be embeddings with --enable-prompt-embeds alone", "unsupported")
    from ..media.embeds import made_of_prompt  # late, and in a thread: numpy, which few servers need

    made = []
    for index, data in enumerate(body.embedded):
        field = "prompt_embeds" if isinstance(body.prompt_embeds, str) else f"prompt_embeds[{index}]"
        with held(memory, 3 * len(data), field):
            try:
                media = await anyio.to_thread.run_sync(made_of_prompt, data, chat.prompt_width, field)
            except Refusal as refusal:
                raise BadRequest(f"`{field}`: {refusal}.", field, "invalid_value") from None
        memory.add(len(media.data), field)
        made.append(([prompt_token(chat.vocab_size)] * media.length, media))
    return made


async def _encode(chat: ChatModel, body: CompletionRequest, prompts: Sequence[RawPrompt]) -> list[list[int]]:
    """Token ids of every prompt, as the client sent them or from its text."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    tokens = [prompt for prompt in prompts if not isinstance(prompt, str)]
    if not texts:
        return tokens
    most_tokens = most_prompt_tokens(chat) if body.truncate_prompt_tokens is None else None
    try:
        if len(texts) == 1:
            return [await chat.pool.encode(texts[0], body.add_special_tokens, most_tokens=most_tokens)]
        return await chat.pool.encode_batch(texts, body.add_special_tokens, most_tokens=most_tokens)
    except TextTooLong as error:
        raise too_long(error.fewest, chat, "prompt", at_least=True) from None


async def _decoder_prompt(chat: ChatModel, body: CompletionRequest) -> Sequence[int]:
    """Its tokens; special ones may be named in its text, and none are added. Raises BadRequest."""
    prompt = body.decoder_prompt
    if prompt is None:
        return ()
    if not chat.decoder_start:
        raise refused("decoder_prompt", "the model has no encoder besides its decoder; leave it out", "unsupported")
    if isinstance(prompt, str):
        try:
            prompt = await chat.pool.encode(prompt, False, most_tokens=most_prompt_tokens(chat))
        except TextTooLong as error:
            raise too_long(error.fewest, chat, "decoder_prompt", at_least=True) from None
    return check_token_ids(prompt, chat.vocab_size, "decoder_prompt")


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """Number of alternatives for each prompt token; None if prompts are not scored."""
    if body.echo and body.logprobs is not None:
        return max(body.logprobs, body.prompt_logprobs or 0)
    return body.prompt_logprobs


def _check_answer(chat: ChatModel, body: CompletionRequest, jobs: Sequence[PromptJob], experts: int | None) -> None:
    """Raises BadRequest if the answer would be too large. Generated text counts unless it is streamed."""
    prompt_token_bytes = 0
    if body.prompt_logprobs is not None:
        prompt_token_bytes += ranked_bytes(body.prompt_logprobs)
    if body.echo and body.logprobs is not None:
        prompt_token_bytes += listed_bytes(body.logprobs)
    if body.return_token_ids:
        prompt_token_bytes += TOKEN_ID_BYTES
    per_token = TOKEN_TEXT_BYTES + (TOKEN_ID_BYTES if body.return_token_ids else 0)
    scores = body.wanted_logprobs
    per_token += 0 if scores is None else listed_bytes(scores)
    tokens = sum(len(job.prompt.tokens) for job in jobs)
    routed = expert_bytes(chat, experts)
    prompt_experts = sum(len(job.prompt.tokens) - (experts or 0) for job in jobs)
    AnswerSize(
        n=body.choices,
        prompts=len(jobs),
        prompt_tokens=tokens,
        prompt_bytes=prompt_token_bytes * tokens
        + sum(len(job.prompt.echo or "") for job in jobs)
        + routed * prompt_experts,
        most_tokens=sum(job.max_tokens for job in jobs),
        token_bytes=0 if body.stream else per_token + routed,
        scores=_prompt_logprobs(body) if prompt_token_bytes else scores,
        scores_field="logprobs" if body.prompt_logprobs is None else "prompt_logprobs",
    ).check(chat.limits.max_answer_bytes)


class _SharedParams:
    """Sampling parameters of one request: one object for all of its prompts that may get as many tokens, and the same
    lists in all of them. They can be large, and prompts can be a thousand."""

    def __init__(self, chat: ChatModel, body: CompletionRequest, context: RequestContext, experts: int | None) -> None:
        """``experts`` is the first position of each prompt whose experts are returned."""
        self._chat = chat
        self._experts = experts
        self._body = body
        self._memory = context.queue_slot.memory
        self._made: dict[int, SamplingParams] = {}
        self._prompts = 0

    async def of(self, max_tokens: int) -> SamplingParams:
        """The parameters of one more prompt, counted in memory. Raises BadRequest and MemoryFull."""
        self._prompts += 1
        if max_tokens not in self._made:
            body = self._body
            first = next(iter(self._made.values()), None)
            params = resolve_sampling(
                body,
                self._chat,
                max_tokens,
                logprobs=body.wanted_logprobs,
                prompt_logprobs=_prompt_logprobs(body),
                biases=await token_biases(self._chat, body) if first is None else (),
                routed_experts=self._experts,
            )
            if first is None:
                params = await with_bad_words(self._chat, params, body.bad_words, self._memory)
            else:
                params = msgspec.structs.replace(first, max_tokens=max_tokens)
            self._made[max_tokens] = params
        params = self._made[max_tokens]
        if self._prompts > 1:  # the engine is given them with each prompt
            self._memory.add(params_bytes(params) // 2, "bad_words" if params.banned_sequences else None)
        return params


class _Request(msgspec.Struct, frozen=True):
    """What the prompts of one request have in common."""

    chat: ChatModel
    body: CompletionRequest
    caller: Caller
    context: RequestContext
    constraints: Constraints
    budget: Budget
    params: _SharedParams
    decoder_prompt: Sequence[int]


class _Given(msgspec.Struct, frozen=True):
    """One prompt as the client gave it."""

    raw: RawPrompt | None
    """None: it is embeddings."""
    tokens: list[int]
    media: Media | None = None


async def _job(request: _Request, index: int, given: _Given) -> PromptJob:
    chat, body, context, budget = request.chat, request.body, request.context, request.budget
    raw, tokens = given.raw, given.tokens
    media = PlacedMedia([] if given.media is None else [given.media])
    first, end = kept_tokens(len(tokens), body, budget, context_length(chat))
    prompt = tokens[first:end]
    check_prompt(prompt, chat, "prompt")
    decoder_prompt = request.decoder_prompt
    max_tokens = output_room(len(prompt), budget, chat, decoder_prompt)
    prompt_logprobs = _prompt_logprobs(body)
    prompt_only = max_tokens == 0
    if prompt_only and prompt_logprobs is not None:
        # The engine scores a prompt on the way to its first token, which is then not delivered.
        max_tokens = output_room(len(prompt), Budget(1, None, "max_tokens", "prompt"), chat)
    params = await request.params.of(max_tokens)
    check_start(params.routed_experts, len(prompt))
    echo = await _echo(chat, raw, prompt, len(prompt) == len(tokens)) if body.echo else None
    batches: Batches[list[Delta]]
    generation = None
    if prompt_only and prompt_logprobs is None:
        batches = _nothing(body.choices)
    else:
        adapter = chat.registry.adapter_of(chat.resolve(body.model))
        common = body, prompt, params, request.caller, request.constraints
        spans = media.within(first, end).spans
        priority = context.priority(body.priority)
        wanted = generation_request(*common, spans, adapter=adapter, decoder_prompt=decoder_prompt, priority=priority)
        size = sum(len(span.data) for span in spans)
        batches = generation = ObservedGeneration(
            chat, wanted, context.arrival, context.queue_slot, field="prompt", media_bytes=size
        )
        if prompt_only:
            batches = _only_prompt(batches, body.choices, len(prompt))
    return PromptJob(Prompt(index, prompt, echo), 0 if prompt_only else max_tokens, batches, generation)


async def _echo(chat: ChatModel, raw: RawPrompt | None, prompt: list[int], whole: bool) -> str:
    """The prompt as text: the client's own where it sent text and nothing was cut off."""
    if whole and isinstance(raw, str):
        return raw
    return await chat.pool.decode(prompt, skip_special_tokens=False)


async def _nothing(n: int) -> AsyncGenerator[list[Delta], None]:
    """A generation without tokens, for which no request is submitted."""
    yield [PromptProcessed(0, None), *_ends(n)]


async def _only_prompt(batches: Batches[list[Delta]], n: int, tokens: int) -> AsyncGenerator[list[Delta], None]:
    """The deltas of the prompt, which has ``tokens`` tokens; the generation is aborted after them."""
    seen = 0
    async with aclosing(batches):
        async for batch in batches:
            for delta in batch:
                if isinstance(delta, PromptProcessed | PromptLogprobs):
                    seen += tokens if delta.logprobs is None else len(delta.logprobs)
                    whole = seen >= tokens
                    yield [delta, *_ends(n)] if whole else [delta]
                    if whole:
                        return
                if isinstance(delta, Finish):
                    yield [delta]
                    return


def _ends(n: int) -> list[Delta]:
    return [Finish(index, "length", None, None) for index in range(n)]
