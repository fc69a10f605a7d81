"""What a request to a transcription model brings to the engine besides its prompt.

Audio travels as the samples that came in, at most one window of the model; the worker makes features of it. Its
encoding is kept by the digest, so several requests over the same window (another temperature, an alignment) share one.
"""

import msgspec

SAMPLE_RATE = 16_000
"""Samples a second of all audio between server and engine."""
SAMPLE_BYTES = 2
MAX_WINDOW_SECONDS = 30
MAX_WINDOW_BYTES = MAX_WINDOW_SECONDS * SAMPLE_RATE * SAMPLE_BYTES
"""Of one window, at most."""
MAX_STREAM_BYTES = 32 << 20
"""Of a request whose audio comes piece by piece, at most: a good quarter of an hour."""


class TokenRules(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which tokens a transcript may hold next, by those before: Whisper's (arXiv:2212.04356, section 4.5).

    They are taken out of the logits before all else, so log-probabilities are those that the rules leave.
    """

    suppressed: list[int]
    """Never drawn."""
    suppressed_first: list[int]
    """Not drawn as the first token."""
    timestamp_begin: int
    """Id of <|0.00|>, after which come all other timestamps; -1: the transcript has none, and no rule is about them."""
    max_initial_timestamp: int
    """The first timestamp is at most that many steps after 0.00; -1 is no limit."""
    eot: int
    """Ends the transcript."""


class Alignment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Asks at which time each token of the prompt from ``start`` on is spoken, by the model's cross-attention.

    Such a prompt is computed in one step, and nothing is drawn after it but one token.
    """

    start: int
    """Position in the prompt of the first token to be aligned."""
    frames: int
    """Encoder positions that lie in the audio; what comes after is padding."""


class Audio(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One window of audio that a request is about."""

    pcm: bytes
    """Signed 16 bits, little-endian, one channel, at :data:`SAMPLE_RATE`."""
    digest: bytes
    """Names the samples: equal digests are equal windows. 16 bytes."""
    rules: TokenRules | None = None
    no_speech: tuple[int, int] | None = None
    """(position in the prompt, token): its probability right after that position is wanted."""
    align: Alignment | None = None


class StreamShape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How positions of a streaming transcription model follow the samples."""

    first: int
    """Samples that must be there before the first position can be computed; at least 1."""
    step: int
    """Further samples for each further position; the whole of an input are as many positions as begin in it."""


class Streamed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Says that a request's audio comes piece by piece, by :class:`.actors.Append`; and what has come of it."""

    pcm: bytes = b""
    """See :attr:`Audio.pcm`; up to :data:`MAX_STREAM_BYTES`, with all that follows."""
    ended: bool = False
    """Whether nothing follows."""


class AlignmentOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the prompt of a request with audio has brought besides its tokens."""

    no_speech: float | None = None
    """The probability that was asked for."""
    times: list[float] = []
    """Seconds from the window's beginning at which each aligned token begins, and at last where the last one ends."""
    probabilities: list[float] = []
    """Of each aligned token, given those before it."""
