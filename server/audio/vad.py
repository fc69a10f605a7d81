"""Voice activity detection: probabilities of streamed audio, and the spans of speech in a whole file."""

from typing import TYPE_CHECKING, Final

import msgspec

from .decode_process import RATE

if TYPE_CHECKING:
    from .silero import Silero

CHUNK_SAMPLES: Final = 512
CHUNK_BYTES: Final = 2 * CHUNK_SAMPLES
CHUNK_MS: Final = 32
_HYSTERESIS: Final = 0.15
"""The probability must fall this far below the threshold for speech to end."""
_BLOCK_CHUNKS: Final = 1024
"""Chunks that are processed together: half a minute."""


class SpeechProbabilities:
    """Speech probabilities of one streamed voice channel. Owned by one task.

    A chunk takes about 80 µs, so it may be pushed on the event loop; a second of audio in one call takes 2.5 ms.
    """

    def __init__(self) -> None:
        """The first one reads the weights and imports numpy: start-up calls :func:`prepare` before."""
        self._model = _silero()
        self._waiting = b""

    def push(self, pcm: bytes) -> list[float]:
        """Pcm at 16 kHz; one probability in [0, 1] for each 32 ms that is whole. The rest waits."""
        import numpy as np  # late: see the package

        pcm = self._waiting + pcm
        whole = len(pcm) - len(pcm) % CHUNK_BYTES
        self._waiting = pcm[whole:]
        if not whole:
            return []
        samples = np.frombuffer(pcm, "<i2", whole // 2).astype(np.float32)
        samples /= 32768
        return self._model.probabilities(samples)

    @property
    def waiting(self) -> int:
        """Samples of the chunk that is not whole yet."""
        return len(self._waiting) // 2


def prepare() -> None:
    """Loads and tries the detector, in about 100 ms. Raises ``OSError`` and ``ValueError`` if it is missing or has
    unexpected contents."""
    SpeechProbabilities().push(bytes(CHUNK_BYTES))


def _silero() -> "Silero":
    from .silero import Silero  # late: see the package

    return Silero()


class SpanOptions(msgspec.Struct, frozen=True):
    """Options of :func:`speech_spans`."""

    threshold: float = 0.5
    """Probability from which a chunk is speech, in (0, 1)."""
    min_speech_ms: int = 250
    """Shorter spans are dropped."""
    min_silence_ms: int = 200
    """A shorter one does not end a span."""
    padding_ms: int = 300
    """Kept around each span, as far as there is room."""
    max_seconds: float = 30.0
    """A longer span is cut where it is quietest."""


class Span(msgspec.Struct, frozen=True):
    """Half-open, in samples of 16 kHz."""

    start: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / RATE


def speech_spans(pcm: bytes, options: SpanOptions | None = None) -> list[Span]:
    """In order, without overlap, none empty; [] without speech. ``pcm`` is at 16 kHz.

    Blocks for about 2.5 ms a second of audio: call it in a thread.
    """
    options = options or SpanOptions()
    detector = SpeechProbabilities()
    found: list[float] = []
    for start in range(0, len(pcm), _BLOCK_CHUNKS * CHUNK_BYTES):
        found += detector.push(pcm[start : start + _BLOCK_CHUNKS * CHUNK_BYTES])
    if detector.waiting:
        found += detector.push(bytes(CHUNK_BYTES - 2 * detector.waiting))
    return spans_of(found, len(pcm) // 2, options)


def spans_of(probabilities: list[float], samples: int, options: SpanOptions) -> list[Span]:
    """The spans of speech in ``samples`` samples, from the probability of each chunk; see :func:`speech_spans`."""
    chunks = _joined(probabilities, options)
    padding = options.padding_ms * RATE // 1000
    spans: list[Span] = []
    for number, (first, last) in enumerate(chunks):
        start, end = first * CHUNK_SAMPLES, min(last * CHUNK_SAMPLES, samples)
        before = chunks[number - 1][1] * CHUNK_SAMPLES if number else 0
        after = chunks[number + 1][0] * CHUNK_SAMPLES if number + 1 < len(chunks) else samples
        # two neighbours share the gap between them
        start -= min(padding, (start - before) // 2 if number else start)
        end += min(padding, (after - end) // 2 if number + 1 < len(chunks) else samples - end)
        spans += _cut(Span(start, end), probabilities, options.max_seconds)
    return spans


def _joined(probabilities: list[float], options: SpanOptions) -> list[tuple[int, int]]:
    """Spans of speech, half-open, in chunks, joined over short silences."""
    silence = -(-options.min_silence_ms // CHUNK_MS)
    least = -(-options.min_speech_ms // CHUNK_MS)
    spans: list[tuple[int, int]] = []
    start: int | None = None
    quiet = 0
    for at, probability in enumerate(probabilities):
        if start is None:
            if probability >= options.threshold:
                start, quiet = at, 0
        elif probability >= options.threshold:
            quiet = 0
        elif quiet or probability < options.threshold - _HYSTERESIS:
            quiet += 1
            if quiet >= silence:
                spans.append((start, at + 1 - quiet))
                start = None
    if start is not None:
        spans.append((start, len(probabilities) - quiet))
    return [(first, last) for first, last in spans if last - first >= least]


def _cut(span: Span, probabilities: list[float], max_seconds: float) -> list[Span]:
    """Cut repeatedly at the quietest chunk in the second half of the longest allowed piece."""
    most = max(int(max_seconds * RATE), 2 * CHUNK_SAMPLES)
    pieces = []
    start = span.start
    while span.end - start > most:
        first, last = -(-(start + most // 2) // CHUNK_SAMPLES), (start + most) // CHUNK_SAMPLES
        # the latest of them: the longer the piece, the more of it is understood
        quietest = min(range(first, last), key=lambda at: (probabilities[at], -at), default=first)
        border = min(quietest * CHUNK_SAMPLES + CHUNK_SAMPLES // 2, start + most)
        pieces.append(Span(start, border))
        start = border
    pieces.append(Span(start, span.end))
    return pieces
