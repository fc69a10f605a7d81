"""The model of :mod:`.fake_worker`: the next token is a hash of all before it, of the audio, the seed and its index.

So a row that was given a wrong token, block, place or position yields other tokens than it does alone.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from stentor.engine.client.media import Media
from stentor.protocols.ipc.actors import Submit
from stentor.protocols.ipc.audio import AlignmentOutput, PromptProbe
from stentor.protocols.ipc.inputs import StreamShape
from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.tests.engine.media import Heard
from stentor.tests.engine.scripted_grammar import VOCAB, ScriptedGrammar, permitted


def hashed(*parts: object) -> int:
    """Of all parts; tokens are lists."""
    parts_of_bytes = [array("q", part).tobytes() if isinstance(part, list) else repr(part).encode() for part in parts]
    return int.from_bytes(blake2b(b"\0".join(parts_of_bytes), digest_size=8).digest(), "little")


def next_token(
    tokens: Sequence[int],
    prompt_len: int,
    params: SamplingParams,
    seed: int,
    allowed: set[int] | None = None,
    pcm: bytes = b"",
) -> int:
    """The token drawn after ``tokens``; stops are masked below ``min_tokens``, unless ``allowed`` says what may be."""
    index = len(tokens) - prompt_len
    token = hashed(list(tokens), seed, index, pcm) % VOCAB
    if allowed is not None:
        return next(each % VOCAB for each in range(token, token + VOCAB) if each % VOCAB in allowed)
    if index < params.min_tokens:
        stops = set(params.eos_token_ids) | set(params.stop_token_ids)
        while token in stops:
            token = (token + 1) % VOCAB
    return token


def token_logprobs(tokens: Sequence[int], position: int) -> TokenLogprobs:
    """A value that depends on the token at ``position`` and all before it."""
    return TokenLogprobs(tokens[position], -float(hashed(list(tokens[: position + 1])) % 997), 1, [])


def alignment_of(prompt: Sequence[int], pcm: bytes, audio: PromptProbe) -> AlignmentOutput:
    """What a prompt brings, as its request asks for it."""
    no_speech = None if audio.no_speech is None else hashed(list(prompt[: audio.no_speech[0] + 1]), pcm) % 997 / 997
    if audio.align is None:
        return AlignmentOutput(no_speech)
    tokens = range(audio.align.start, len(prompt))
    times = [float(hashed(list(prompt[: at + 1]), pcm, audio.align.frames) % 997) for at in [*tokens, tokens.stop]]
    return AlignmentOutput(no_speech, times, times[:-1])


def pooled_of(prompt: Sequence[int], pooling: Pooling) -> Pooled:
    """What is made of a prompt: bytes that depend on all of it."""
    return Pooled(1, 2, hashed(list(prompt), pooling).to_bytes(8, "little"))


def media_bytes(media: Sequence[Media], position: int = 1 << 60) -> bytes:
    """Those that stand in a prompt up to a position, as tokens behind them depend on them."""
    return b"".join(one.start.to_bytes(8, "little") + one.data for one in media if one.start <= position)


@dataclass
class Alone:
    """What a sequence yields when nothing else exists."""

    tokens: list[int]
    reason: str
    stop_token: int | None


def prefix_of(pcm: bytes, shape: StreamShape | None, position: int) -> bytes:
    """What has been heard at a position of a streaming transcription model; for all others everything."""
    return pcm if shape is None else pcm[: 2 * (shape.first + shape.step * position)]


def alone(
    submit: Submit,
    index: int,
    max_model_len: int,
    grammar: ScriptedGrammar | None = None,
    shape: StreamShape | None = None,
    streamed: Heard | None = None,
    heard: bytes = b"",
) -> Alone:
    """Computed straight from the definition of the fake model; ``streamed`` is all that was,
    and ``heard`` what else tokens depend on."""
    params, tokens, prompt_len = submit.params, list(submit.prompt), len(submit.prompt)
    limit = min(prompt_len + params.max_tokens, max_model_len)
    pcm = heard
    end, input_done = limit, -1
    if shape is not None and streamed is not None:
        pcm = streamed.pcm
        input_done = max(-(-len(pcm) // (2 * shape.step)), prompt_len) + 1
        end = min(limit, input_done)
    while len(tokens) < end:
        count = len(tokens) - prompt_len
        outputs = tokens[prompt_len:]
        allowed = None if grammar is None else permitted(grammar, params, outputs)
        here = prefix_of(pcm, shape, len(tokens) - 1)
        token = next_token(tokens, prompt_len, params, submit.seeds[index], allowed, here)
        tokens.append(token)
        if count >= params.min_tokens:
            if token in params.eos_token_ids:
                return Alone(tokens[prompt_len:], "stop", None)
            if token in params.stop_token_ids:
                return Alone(tokens[prompt_len:], "stop", token)
        if grammar is not None and grammar.ends_with(params, outputs, token):
            return Alone(tokens[prompt_len:], "stop", None)
    if submit.pooling is not None:
        return Alone([], "stop", None)
    # where input and length end it at once, it is the input that does: nothing is left to be heard
    stops = end == input_done and streamed is not None and streamed.ended
    return Alone(tokens[prompt_len:], "stop" if stops else "length", None)
