"""Audio between server and engine, and what transcription asks of a prompt.

Audio is signed 16 bits, little-endian, one channel, at :data:`SAMPLE_RATE`; the worker makes features of it.
"""

import msgspec

SAMPLE_RATE = 16_000
"""Samples a second of all audio between server and engine."""
SAMPLE_BYTES = 2
MAX_WINDOW_SECONDS = 30
MAX_WINDOW_BYTES = MAX_WINDOW_SECONDS * SAMPLE_RATE * SAMPLE_BYTES
"""Of one window, at most."""


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


class PromptProbe(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a request over audio wants to know of its prompt besides its tokens."""

    no_speech: tuple[int, int] | None = None
    """(position in the prompt, token): its probability right after that position is wanted."""
    align: Alignment | None = None


class AlignmentOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the prompt of a request with audio has brought besides its tokens."""

    no_speech: float | None = None
    """The probability that was asked for."""
    times: list[float] = []
    """Seconds from the window's beginning at which each aligned token begins, and at last where the last one ends."""
    probabilities: list[float] = []
    """Of each aligned token, given those before it."""
