"""Cuts audio at its quietest place."""

from typing import Final

from stentor.protocols.ipc.audio import SAMPLE_BYTES, SAMPLE_RATE

_CUT_SAMPLES: Final = 8 * SAMPLE_RATE
"""Samples in which the quietest place is searched."""
_SPAN: Final = SAMPLE_RATE // 10
"""Samples over which loudness is taken."""
_STEP: Final = SAMPLE_RATE // 50


def quietest(pcm: bytes, begin: int, end: int) -> int:
    """The middle of the quietest tenth of a second in samples [begin, end); the last of equals.

    ``end`` is at least a tenth of a second after ``begin``.
    """
    import numpy as np  # late: a server that is never sent audio does without

    samples = np.frombuffer(pcm, "<i2", count=end - begin, offset=2 * begin).astype(np.float64)
    energy = np.concatenate([[0.0], np.cumsum(samples * samples)])
    starts = np.arange(0, len(samples) - _SPAN + 1, _STEP)
    loudness = energy[starts + _SPAN] - energy[starts]
    last = len(starts) - 1 - int(np.argmin(loudness[::-1]))
    return begin + int(starts[last]) + _SPAN // 2


def cut_quietly(pcm: bytes, *, last: bool) -> bytes:
    """``pcm`` cut at a quiet place, so that no word is cut if more follows."""
    samples = len(pcm) // SAMPLE_BYTES
    if last or samples < 2 * _CUT_SAMPLES:
        return pcm
    return pcm[: quietest(pcm, samples - _CUT_SAMPLES, samples) * SAMPLE_BYTES]
