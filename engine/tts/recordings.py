"""Recordings that make a voice: wav files of 16 bits and one channel."""

import wave
from pathlib import Path
from typing import Any, Final

from .backend import CannotSpeak

PROMPT_SECONDS: Final = 30.0
"""Of a voice's recording; the rest is cut off."""


def read_recording(file: Path, rate: int) -> Any:
    """The first :data:`PROMPT_SECONDS` of a recording at ``rate``: a numpy array of float32 within [-1, 1].

    Raises :class:`CannotSpeak`.
    """
    import numpy as np  # late: the process may have another form of voices
    import soxr

    try:
        with wave.open(str(file)) as opened:
            if opened.getsampwidth() != 2 or opened.getnchannels() != 1:
                raise CannotSpeak(f"{file} is not of 16 bits and one channel: convert it")
            own = opened.getframerate()
            pcm = opened.readframes(int(PROMPT_SECONDS * own))
    except (OSError, EOFError, wave.Error) as error:
        raise CannotSpeak(f"{file} cannot be read: {error}") from error
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    if not len(samples):
        raise CannotSpeak(f"{file} has no sound: record it again")
    return samples if own == rate else soxr.resample(samples, own, rate)
