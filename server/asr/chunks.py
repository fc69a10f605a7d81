"""Cuts audio into chunks for parallel transcription: in silence, at most one window each."""

from collections.abc import Iterator, Sequence
from typing import Final

import anyio
import msgspec

from stentor.protocols.ipc.audio import SAMPLE_RATE

from ..audio.quiet import cut_quietly
from .options import Chunking
from .segments import BYTES_A_FRAME, SAMPLES_A_FRAME, WINDOW_FRAMES

_FEWEST_SAMPLES: Final = SAMPLE_RATE // 10
"""Shorter ones are clicks."""
_MOST_SECONDS: Final = 29.5
"""Longest span without a cut: less than a window, since spans begin and end between frames."""


class Span(msgspec.Struct, frozen=True):
    """Frames [begin, end)."""

    begin: int
    end: int


def quiet_spans(pcm: bytes) -> Iterator[Span]:
    """Spans of all of ``pcm``, at most one window each, cut at quiet places."""
    begin, frames = 0, -(-len(pcm) // BYTES_A_FRAME)
    while begin < frames:
        window = pcm[begin * BYTES_A_FRAME : (begin + WINDOW_FRAMES) * BYTES_A_FRAME]
        end = begin + -(-len(cut_quietly(window, last=begin + WINDOW_FRAMES >= frames)) // BYTES_A_FRAME)
        yield Span(begin, end)
        begin = end


async def chunks_of(pcm: bytes, chunking: Chunking, limiter: anyio.CapacityLimiter) -> list[Span]:
    """Chunks with speech; empty without speech. Blocks; call it in a thread."""
    from ..audio.vad import SpanOptions, speech_spans  # late: the detector is needed only here

    options = SpanOptions(
        threshold=chunking.threshold,
        min_silence_ms=chunking.silence_duration_ms,
        padding_ms=chunking.prefix_padding_ms,
        max_seconds=_MOST_SECONDS,
    )
    spans = await anyio.to_thread.run_sync(speech_spans, pcm, options, limiter=limiter)
    return pack([(span.start, span.end) for span in spans], len(pcm) // 2)


def pack(spoken: Sequence[tuple[int, int]], samples: int) -> list[Span]:
    """Chunks of at most one window from samples [begin, end) with speech, in order.

    Neighbours share a chunk while they fit, with the silence between: the model gets sentences in their context, and a
    window costs the same whether it is full or not. Speech longer than a window is cut at its end.
    """
    chunks: list[Span] = []
    most = WINDOW_FRAMES
    for begin, end in spoken:
        if end - begin < _FEWEST_SAMPLES:
            continue
        first, last = begin // SAMPLES_A_FRAME, -(-min(end, samples) // SAMPLES_A_FRAME)
        if chunks and last - chunks[-1].begin <= most:
            chunks[-1] = Span(chunks[-1].begin, last)
            continue
        while last - first > most:
            chunks.append(Span(first, first + most))
            first += most
        chunks.append(Span(first, last))
    return chunks
