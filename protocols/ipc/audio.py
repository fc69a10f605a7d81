"""Audio between server and engine, and transcription's requests about a prompt.

Audio is signed 16 bits, little-endian, one channel, at :data:`SAMPLE_RATE`; the worker computes features.
"""

import msgspec

SAMPLE_RATE = 16_000
"""Samples a second of all audio between server and engine."""
SAMPLE_BYTES = 2
MAX_WINDOW_SECONDS = 30
MAX_WINDOW_BYTES = MAX_WINDOW_SECONDS * SAMPLE_RATE * SAMPLE_BYTES
"""Bytes of one window, at most."""


class TokenRules(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens that may follow in a transcript, given those before: Whisper's rules (arXiv:2212.04356, section 4.5).

    Other tokens are removed from the logits first, so log-probabilities are those of the remaining tokens.
    """

    suppressed: list[int]
    """Tokens that are never sampled."""
    suppressed_first: list[int]
    """Tokens that are not sampled first."""
    timestamp_begin: int
    """Id of <|0.00|>, after which come all other timestamps; -1: the transcript has none, and no rule is about them."""
    max_initial_timestamp: int
    """The first timestamp is at most that many steps after 0.00; -1 is no limit."""
    eot: int
    """Ends the transcript."""


class Alignment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Requests the time at which each token of the prompt from ``start`` on is spoken, by cross-attention.

    Such a prompt is computed in one step, and one token is sampled after it.
    """

    start: int
    """Prompt position of the first token to align."""
    frames: int
    """Encoder positions of the audio; later ones are padding."""


class PromptProbe(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a request over audio needs about its prompt besides tokens."""

    no_speech: tuple[int, int] | None = None
    """(position in the prompt, token): its probability right after that position is wanted."""
    align: Alignment | None = None


class AlignmentOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Results about the prompt of a request with audio, besides tokens."""

    no_speech: float | None = None
    """The requested probability."""
    times: list[float] = []
    """Seconds from the window's beginning at which each aligned token begins, and at last where the last one ends."""
    probabilities: list[float] = []
    """Probability of each aligned token, given those before it."""
