"""Prepares a validated request and its prompt for the engine: lengths, parameters, seeds."""

import os
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from stentor.protocols.common.bounds import TOKEN_ID_BYTES, AnswerSize, described_bytes, ranked_bytes
from stentor.protocols.common.errors import BadRequest, refused, wrong
from stentor.protocols.ipc.sampling import NoRepeat, SamplingParams
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.sampling import SamplingFields, VllmXargs, check_token_ids

from ..text.output.generation import Submitter
from .chat_model import ChatModel
from .routed_experts import expert_bytes

Value = TypeVar("Value")

_SEEDS: Final = 2**64
_LEAST_TOP_P: Final = 1e-6
"""For 0, which the engine does not take; either keeps only the likeliest token."""


class Budget(msgspec.Struct, frozen=True):
    """The number of tokens that a request wants, and the names of its fields in error messages."""

    wanted: int | None
    """None if the client did not set it."""
    default: int | None
    """Then this many, or None for the rest of the context."""
    wanted_field: str
    prompt_field: str


class GenerationOptions(msgspec.Struct, frozen=True):
    """What a protocol wants otherwise than chat completions in one body have it."""

    fill_context: bool = False
    """Reduce a number of tokens that the context has no room for, instead of refusing it."""
    whole: bool = True
    """The answer is one body, and log-probabilities that make it too large are refused."""
    copies: int = 1
    """Times that log-probabilities occur in the body."""
    tells_experts: bool = False
    """Experts are requested as :func:`.routed_experts.first_position` decides."""
    begins_answer: bool = False
    """The prompt reaches to the first word of an answer without reasoning."""
    client: Submitter | None = None
    """Gets the request in place of the engine's own client."""
    arrival: float | None = None
    """When it was requested, by ``time.monotonic()``; None: when the request arrived."""


PLAIN: Final = GenerationOptions()


def context_length(chat: ChatModel) -> int:
    """Raises Unavailable before the engine is ready."""
    chat.admission.check_available(chat.role)
    length = chat.max_model_len
    assert length is not None
    return length


def kept_tokens(prompt_len: int, body: SamplingFields, budget: Budget, context: int) -> tuple[int, int]:
    """The half-open interval of a prompt's tokens that ``truncate_prompt_tokens`` keeps; -1 keeps as many as leave room
    for the answer. Raises BadRequest."""
    limit = body.truncate_prompt_tokens
    if limit is None:
        return 0, prompt_len
    if limit == 0:
        raise wrong("truncate_prompt_tokens", "must be -1, or 1 and more")
    if limit > context:
        raise wrong("truncate_prompt_tokens", f"({limit}) is more than the model's context of {context} tokens")
    if limit < 0:
        limit = max(1, context - max(1, budget.wanted or budget.default or 1))
    limit = min(limit, prompt_len)
    return (0, limit) if body.truncation_side == "right" else (prompt_len - limit, prompt_len)


def most_prompt_tokens(chat: ChatModel) -> int:
    """The longest allowed prompt in tokens: the context, or the operator's limit. Raises Unavailable."""
    context = context_length(chat)
    return min(context, chat.limits.max_prompt_tokens or context)


def too_long(prompt_len: int, chat: ChatModel, param: str, *, at_least: bool = False) -> BadRequest:
    """The refusal of a prompt that has more tokens than the operator allows, or leaves no room in the context;
    ``at_least`` where they were not all counted."""
    context, most = context_length(chat), most_prompt_tokens(chat)
    found = f"at least {prompt_len}" if at_least else str(prompt_len)
    if most < context:
        return BadRequest(
            f"The prompt has {found} tokens; this server allows at most {most}. Shorten the prompt.",
            param,
            "context_length_exceeded",
            lengths=(prompt_len, most),
        )
    together = "for a prompt" if chat.decoder_start else "prompt and output together"
    return BadRequest(
        f"The prompt has {found} tokens; the model's context is {context} tokens, {together}. Shorten the prompt.",
        param,
        "context_length_exceeded",
        lengths=(prompt_len, context),
    )


def check_prompt(prompt: list[int], chat: ChatModel, param: str) -> None:
    """Raises BadRequest for a prompt without tokens, with too many, or with one outside the vocabulary."""
    if not prompt:
        raise wrong(param, "must hold at least one token")
    if len(prompt) > most_prompt_tokens(chat):
        raise too_long(len(prompt), chat, param)
    if max(prompt) >= chat.vocab_size:
        check_token_ids(prompt, chat.vocab_size, param)


def output_room(prompt_len: int, budget: Budget, chat: ChatModel, decoder_prompt: Sequence[int] = ()) -> int:
    """The resolved ``max_tokens``, within the operator's bound. Raises BadRequest where prompt and output do not fit
    the context.

    The decoder of an encoder-decoder sees ``decoder_prompt`` behind the tokens that it begins with, not the prompt.
    """
    found = _context_room(prompt_len, budget, chat, decoder_prompt)
    most = chat.defaults.most_tokens
    return found if most is None else min(found, most)


def _context_room(prompt_len: int, budget: Budget, chat: ChatModel, decoder_prompt: Sequence[int]) -> int:
    context, what = context_length(chat), "prompt"
    if chat.decoder_start:
        prompt_len, what = len(chat.decoder_start) + len(decoder_prompt), "decoder's prompt"
    room = context - prompt_len
    if room < 1 and decoder_prompt:
        raise refused(
            "decoder_prompt",
            f"it makes {prompt_len} tokens with those that begin every output; the model's context is {context} "
            "tokens, both and output together. Shorten it",
            "context_length_exceeded",
        )
    if room < (1 if budget.wanted != 0 else 0):
        raise too_long(prompt_len, chat, budget.prompt_field)
    if budget.wanted is None:
        return room if budget.default is None else min(budget.default, room)
    if budget.wanted > room:
        raise wrong(
            budget.wanted_field,
            f"is {budget.wanted} and the {what} has {prompt_len} tokens; the model's context is {context} tokens, "
            f"prompt and output together. At most {room} can be generated",
            "context_length_exceeded",
        )
    return budget.wanted


def most_tokens_of(
    chat: ChatModel,
    body: ChatRequest,
    budget: Budget,
    prompt: list[int],
    options: GenerationOptions,
    experts: int | None = None,
) -> int:
    """The ``max_tokens`` of a request, as :func:`output_room` resolves it, but no more than a whole answer may hold.

    Without a number from the client, the answer may fill the room. ``experts`` is the first position whose experts are
    returned. Raises BadRequest as there.
    """
    tokens = output_room(len(prompt), budget, chat)
    scores = body.wanted_logprobs
    plain = scores is None and body.prompt_logprobs is None and not body.return_token_ids and experts is None
    if not options.whole or plain:
        return tokens
    routed = expert_bytes(chat, experts)
    per_token = routed + (0 if scores is None else options.copies * described_bytes(scores))
    prompt_token_bytes = 0 if body.prompt_logprobs is None else ranked_bytes(body.prompt_logprobs)
    if body.return_token_ids:
        per_token, prompt_token_bytes = per_token + TOKEN_ID_BYTES, prompt_token_bytes + TOKEN_ID_BYTES
    size = AnswerSize(
        n=body.choices,
        prompt_tokens=len(prompt),
        prompt_bytes=prompt_token_bytes * len(prompt) + body.choices * routed * (len(prompt) - (experts or 0)),
        repeated=False,
        most_tokens=tokens,
        token_bytes=per_token,
        scores=scores if body.prompt_logprobs is None else body.prompt_logprobs,
        scores_field="prompt_logprobs",
        tokens_field=budget.wanted_field,
        prompt_field=budget.prompt_field,
    )
    most = chat.limits.max_answer_bytes
    if per_token and (options.fill_context or budget.wanted is None):
        fitting = (most - size.fixed) // (size.n * per_token)
        if fitting > 0:
            return min(tokens, fitting)
    size.check(most)
    return tokens


def resolve_sampling(
    request: SamplingFields,
    chat: ChatModel,
    max_tokens: int,
    *,
    logprobs: int | None,
    prompt_logprobs: int | None,
    biases: tuple[tuple[int, float], ...] = (),
    routed_experts: int | None = None,
) -> SamplingParams:
    """The request's values over the model's defaults, with the ``biases`` of tokens (:func:`.biases.token_biases`).
    Raises BadRequest."""
    if request.min_tokens > max_tokens > 0:
        raise wrong("min_tokens", f"({request.min_tokens}) is more than the {max_tokens} tokens that can be generated")
    if prompt_logprobs is not None and (chat.decoder_start or chat.picture is not None):
        raise refused(
            "prompt_logprobs",
            "the model's encoder reads the prompt, which has no log-probabilities; leave it out, and `echo` "
            "with `logprobs`",
            "unsupported",
        )
    defaults = chat.defaults
    vocab = chat.vocab_size
    mode = chat.config.logprobs_mode
    processed = _given(request.post_sampling_probs, mode in ("processed_logprobs", "processed_logits"))
    # beams are found by log-probabilities, and a request that chooses gets them
    chooses = request.post_sampling_probs is not None or bool(request.use_beam_search)
    logits = mode in ("raw_logits", "processed_logits") and not chooses
    top_k = _given(request.top_k, defaults.top_k)
    allowed = check_token_ids(request.allowed_token_ids, vocab, "allowed_token_ids")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        temperature=_given(request.temperature, defaults.temperature),
        top_k=max(0, top_k),
        top_p=max(_LEAST_TOP_P, _given(request.top_p, defaults.top_p)),
        min_p=_given(request.min_p, defaults.min_p),
        repetition_penalty=_given(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        eos_token_ids=() if request.ignore_eos else defaults.eos_token_ids,
        stop_token_ids=check_token_ids(request.stop_token_ids, vocab, "stop_token_ids"),
        logit_bias=biases,
        allowed_token_ids=allowed or None,
        logprobs=logprobs,
        logprob_token_ids=tuple(dict.fromkeys(check_token_ids(request.logprob_token_ids, vocab, "logprob_token_ids"))),
        prompt_logprobs=prompt_logprobs,
        routed_experts=routed_experts,
        num_drafts=None if request.speculative is None else request.speculative.num_tokens,
        processed_logprobs=logprobs is not None and processed,
        logits=logits and (logprobs is not None or prompt_logprobs is not None),
        no_repeat=_no_repeat(request.vllm_xargs, vocab),
    )


def _no_repeat(given: VllmXargs | None, vocab_size: int) -> NoRepeat | None:
    if given is None or given.ngram_size is None:
        return None
    exempt = check_token_ids(given.whitelist_token_ids, vocab_size, "vllm_xargs.whitelist_token_ids")
    return NoRepeat(given.ngram_size, given.window_size, tuple(sorted(set(exempt))))


def draw_seeds(seed: int | None, n: int) -> list[int]:
    """One seed per choice, unsigned 64 bits: counted up from the client's, or random."""
    if seed is None:
        return [int.from_bytes(os.urandom(8), "little") for _ in range(n)]
    return [(seed + index) % _SEEDS for index in range(n)]


def _given(value: Value | None, default: Value) -> Value:
    return default if value is None else value
