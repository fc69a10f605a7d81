"""Segments of a transcript, and how a window's tokens become segments."""

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from stentor.protocols.ipc.steps import TokenLogprobs

FRAMES_A_SECOND: Final = 100
"""Frames of the features; audio positions are counted in frames, as in Whisper's own reports."""
FRAMES_A_STEP: Final = 2
"""Frames between two timestamp tokens."""
WINDOW_FRAMES: Final = 3000
"""Frames of one window: 30 seconds."""
SAMPLES_A_FRAME: Final = 160
BYTES_A_FRAME: Final = 2 * SAMPLES_A_FRAME
SENTENCE_ENDS: Final = ".。!！?？"  # noqa: RUF001


class Word(msgspec.Struct):
    """One word with the space before it; times in seconds of the whole audio."""

    word: str
    start: float
    end: float
    probability: float


class Segment(msgspec.Struct):
    """Some seconds of speech with their text. Times in seconds of the whole audio."""

    id: int
    seek: int
    """Frame at which its window began."""
    start: float
    end: float
    text: str
    """Begins with a space where a word does."""
    tokens: list[int]
    """With the timestamps around it."""
    temperature: float
    avg_logprob: float
    """Over the whole window, like the next two."""
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None
    logprobs: list[TokenLogprobs] | None = None
    """Of the tokens, if requested."""


class Part(msgspec.Struct):
    """Tokens [begin, end) of a window: one segment, before it has text. Times in seconds of the whole audio."""

    begin: int
    end: int
    start: float
    stop: float
    words: list[Word] | None = None


class WindowSegments(msgspec.Struct, frozen=True):
    """A window's tokens taken apart."""

    parts: list[Part]
    advance: int
    """Frames to the beginning of the next window."""
    whole: bool
    """Whether the whole window was transcribed: no speech follows the last timestamp, or there are no timestamps."""


def cut_window(tokens: Sequence[int], timestamp_begin: int, seek: int, frames: int) -> WindowSegments:
    """Takes the tokens of the window of ``frames`` at ``seek`` apart where two timestamps follow each other.

    What comes after the last such pair was cut off by the window's end and is transcribed again in the next one, unless
    a single timestamp ends it: then nothing is spoken after that.
    """
    offset = seek / FRAMES_A_SECOND
    step = FRAMES_A_STEP / FRAMES_A_SECOND

    def is_time(place: int) -> bool:
        return tokens[place] >= timestamp_begin

    count = len(tokens)
    single_ending = count >= 2 and not is_time(count - 2) and is_time(count - 1)
    bounds = [place for place in range(1, count) if is_time(place) and is_time(place - 1)]
    if not bounds:
        seconds = frames / FRAMES_A_SECOND
        times = [token - timestamp_begin for token in tokens if token >= timestamp_begin]
        if times and times[-1]:
            seconds = times[-1] * step
        return WindowSegments([Part(0, count, offset, offset + seconds)], frames, True)
    if single_ending:
        bounds.append(count)
    parts, begin = [], 0
    for end in bounds:
        first, last = (max(0, tokens[place] - timestamp_begin) for place in (begin, end - 1))
        parts.append(Part(begin, end, offset + first * step, offset + last * step))
        begin = end
    advance = frames if single_ending else (tokens[begin - 1] - timestamp_begin) * FRAMES_A_STEP
    return WindowSegments(parts, advance, single_ending)


def compression_ratio(text: str) -> float:
    """Bytes of the text divided by its zlib size: repetitive text is above 2.4."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))
