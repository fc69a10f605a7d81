"""Checks requests, and explains why they can never run."""

from typing import Final

from stentor.protocols.ipc.actors import Append, Submit
from stentor.protocols.ipc.audio import MAX_WINDOW_BYTES, SAMPLE_BYTES, SAMPLE_RATE, PromptProbe
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.protocols.ipc.inputs import MAX_STREAM_BYTES, InputSpan, StreamShape, total_bytes

from ..cache.prefix import MAX_TOKEN_ID
from ..input import InputStream
from ..prompt_media import whole_parts

DIGEST_BYTES = 16
TOKEN_BYTES = 4
"""Of a token of an encoder's text."""


def refusal_of(submit: Submit, max_model_len: int) -> str | None:
    """Why a request is invalid in itself; None if it is valid."""
    prompt_len = len(submit.prompt)
    params = submit.params
    if not submit.seeds:
        return "the request has no seeds; one per sequence is needed"
    if not prompt_len:
        return "the prompt is empty; at least one token is needed"
    if params.max_tokens < 0:
        return f"max_tokens is {params.max_tokens}; it must be 0 or more"
    if min(submit.prompt) < 0 or max(submit.prompt) > MAX_TOKEN_ID:
        return f"the prompt has a token id outside [0, {MAX_TOKEN_ID}]"
    if prompt_len + min(1, params.max_tokens) > max_model_len:
        return (
            f"the prompt has {prompt_len} tokens, but the model's context is {max_model_len}, "
            "prompt and output together: shorten the prompt"
        )
    return _refuse_resumed(submit)


def input_refusal_of(submit: Submit, cross: CacheGroup | None, max_num_batched_tokens: int) -> str | None:
    """Why a request's media or its options for them are invalid; None if they are valid."""
    if submit.streamed is not None and cross is not None:
        return "a request has streamed audio or other media, not both" if submit.inputs else None
    why = spans_refusal_of(submit.inputs, cross)
    if why is not None:
        return why
    prompt_len = len(submit.prompt)
    if cross is not None and cross.whole_prompts and prompt_len > cross.whole:
        return (
            f"the prompt has {prompt_len} tokens, media included, and the model computes it in one step, of at most "
            f"{cross.whole}: raise --max-prefill-chunk and --max-num-batched-tokens, or make it smaller"
        )
    end = 0
    for span in submit.inputs:
        if span.length < 1 or len(span.digest) != DIGEST_BYTES or span.data.length < 1:
            return f"media of {span.data.length} bytes and {span.length} embeddings are none"
        if span.start < 0:
            continue
        if span.start < end or span.end > prompt_len:
            where = f"positions {span.start} to {span.end}"
            return f"media at {where} of a prompt of {prompt_len} tokens overlap others, or leave it"
        end = span.end
    if cross is not None and cross.window and cross.inputs == "audio" and len(submit.seeds) != 1:
        return f"a request with audio has one sequence, not {len(submit.seeds)}"
    return None if submit.probe is None else _refuse_probe(submit, submit.probe, max_num_batched_tokens)


def spans_refusal_of(spans: list[InputSpan], cross: CacheGroup | None) -> str | None:
    """Why a model with this cross-attention group cannot serve a request with these media; None if it can."""
    if cross is None:
        return "the model reads tokens alone: it takes no audio or other media" if spans else None
    if cross.window:
        return _window_refusal(spans, cross)
    if any(span.start < 0 for span in spans):
        return "the media of a prompt stand at positions of it"
    parts = whole_parts(spans, spans[-1].end if spans else 0, cross)
    longest = max((end - first for first, end in parts), default=0)
    if longest > cross.whole:
        what = "all media of the prompt, with what is between them, take" if cross.joined else "a piece of media takes"
        return (
            f"{what} {longest} positions, and the model computes it in one step, of at most "
            f"{cross.whole}: raise --max-prefill-chunk and --max-num-batched-tokens, or make it smaller"
        )
    total = sum(span.length for span in spans)
    if total > cross.capacity:
        what = "pictures" if cross.lasting else "embeddings"
        return f"the media of the prompt take {total} {what}, and the encoder cache holds {cross.capacity}"
    return None


_NEEDS: Final = {
    "audio": "a transcription model is served: the request needs audio",
    "picture": "a model that writes about a picture is served: the request needs one",
    "tokens": "an encoder-decoder is served: the request needs a text for the encoder",
}


def _window_refusal(spans: list[InputSpan], cross: CacheGroup) -> str | None:
    """The same for a model whose requests bring one window."""
    if not spans:
        return _NEEDS[cross.inputs]
    if len(spans) > 1 or spans[0].start >= 0 or spans[0].length != cross.window:
        return f"the model takes one window of {cross.window} positions at once, and the request brings others"
    size = spans[0].data.length
    match cross.inputs:
        case "tokens" if size % TOKEN_BYTES or not 0 < size <= TOKEN_BYTES * cross.window:
            return f"the encoder's text has {size} bytes; expected are 1 to {cross.window} tokens of {TOKEN_BYTES}"
        case "audio" if not 0 < size <= MAX_WINDOW_BYTES or size % SAMPLE_BYTES:
            return f"the audio has {size} bytes; expected are whole samples, up to {MAX_WINDOW_BYTES} bytes"
        case _:
            return None


def oversized(submit: Submit, cross: CacheGroup | None) -> InputSpan | None:
    """The largest medium of a prompt whose media cannot be computed at once, or not kept; None if they fit."""
    if cross is None or cross.window or not submit.inputs:
        return None
    fits = spans_refusal_of(submit.inputs, cross) is None
    if fits and not (cross.whole_prompts and len(submit.prompt) > cross.whole):
        return None
    return max(submit.inputs, key=lambda span: span.length)


def _refuse_probe(submit: Submit, probe: PromptProbe, max_num_batched_tokens: int) -> str | None:
    prompt_len = len(submit.prompt)
    if probe.no_speech is not None and not 0 <= probe.no_speech[0] < prompt_len:
        return f"silence is asked for at position {probe.no_speech[0]} of a prompt of {prompt_len} tokens"
    if probe.align is None:
        return None
    if not 0 < probe.align.start < prompt_len or probe.align.frames < 1:
        return f"an alignment from token {probe.align.start} on of a prompt of {prompt_len} tokens has nothing to align"
    if submit.params.max_tokens > 1:
        return f"an alignment draws one token at most, not {submit.params.max_tokens}"
    if prompt_len + 1 > max_num_batched_tokens:
        return (
            f"an alignment of a prompt of {prompt_len} tokens does not fit into a step of {max_num_batched_tokens}: "
            "raise --max-num-batched-tokens"
        )
    return None


def stream_refusal_of(submit: Submit, shape: StreamShape | None) -> str | None:
    """Why streamed audio is invalid for this model, or missing; None if it is not."""
    streamed = submit.streamed
    if shape is None:
        return None if streamed is None else "the model takes no streamed audio"
    if streamed is None:
        if submit.inputs:
            return None
        return "the model transcribes audio as it comes: the request needs streamed audio"
    if len(submit.seeds) != 1:
        return f"a request with audio has one sequence, not {len(submit.seeds)}"
    if submit.params.max_tokens < 1 and submit.pooling is None:
        return "a request with streamed audio draws at least one token"
    return _refuse_pcm(total_bytes(streamed.pieces))


def pooling_refusal_of(submit: Submit, max_num_batched_tokens: int, *, is_pooling: bool, sees_all: bool) -> str | None:
    """Why the pooling parameters are invalid for this model; None if they are valid.

    ``sees_all``: attention is bidirectional, so that a prompt is one chunk.
    """
    pooling = submit.pooling
    if pooling is None:
        return "the model makes vectors and scores: it draws no tokens" if is_pooling else None
    if not is_pooling:
        return "the model draws tokens: it makes no vectors and scores"
    if len(submit.seeds) != 1 or submit.params.max_tokens:
        return "a request for vectors or scores has one sequence, and no tokens"
    if not 0 <= pooling.skip < len(submit.prompt) or not 0 <= pooling.second <= len(submit.prompt):
        return f"nothing of a prompt of {len(submit.prompt)} tokens is left behind token {pooling.skip}"
    if sees_all and submit.streamed is None and len(submit.prompt) > max_num_batched_tokens:
        return (
            f"a prompt of {len(submit.prompt)} tokens does not fit into a step of {max_num_batched_tokens}: "
            "shorten it, or raise --max-num-batched-tokens"
        )
    return None


def append_refusal_of(input_stream: InputStream | None, more: Append) -> str | None:
    """Why streamed audio cannot be appended; None if it can."""
    if input_stream is None:
        return "audio came for a request that has no streamed audio"
    if input_stream.ended:
        return "audio came after the last of a request's"
    return _refuse_pcm(total_bytes(more.pieces), len(input_stream))


def _refuse_pcm(nbytes: int, before: int = 0) -> str | None:
    if nbytes % SAMPLE_BYTES:
        return f"audio of {nbytes} bytes came; expected are whole samples of {SAMPLE_BYTES}"
    if before + nbytes > MAX_STREAM_BYTES:
        seconds = MAX_STREAM_BYTES // (SAMPLE_BYTES * SAMPLE_RATE)
        return f"more than {seconds} s of audio have come for one request: end it, and begin another"
    return None


def too_long(needed: int, capacity: int) -> str:
    """The refusal of a request that may grow to ``needed`` tokens, where the cache holds ``capacity`` of one
    sequence."""
    return (
        f"the request may grow to {needed} tokens, but the KV cache holds {capacity}: "
        "shorten the prompt, lower max_tokens, or give the cache more memory"
    )


def _refuse_resumed(submit: Submit) -> str | None:
    """Why a request cannot be resumed in the given state; None if it can."""
    resumed = submit.resumed
    if resumed is None:
        return None
    sequences = len(submit.seeds)
    if len(resumed.outputs) != sequences or not all(0 <= index < sequences for index in resumed.ended):
        return f"the request is resumed with {len(resumed.outputs)} outputs, but has {sequences} sequences"
    if any(not 0 <= token <= MAX_TOKEN_ID for outputs in resumed.outputs for token in outputs):
        return f"the request is resumed with a token id outside [0, {MAX_TOKEN_ID}]"
    return None
