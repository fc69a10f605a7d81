"""Decodes audio of clients for audio models, as transcription does. For a killable child."""

from typing import TYPE_CHECKING

from ...audio.decode_child import decode
from ...audio.decode_process import RATE, TOO_LONG, DecodeJob
from ..refusal import REFUSED, TOO_LARGE, Refusal
from .decoded import DecodedLimits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLE_RATE = RATE


def decode_audio(data: bytes, limits: DecodedLimits) -> "NDArray[np.float32]":
    """Samples of one channel at :data:`SAMPLE_RATE`, from -1 to 1; also the sound of a video.

    Raises :class:`..refusal.Refusal` for a file without sound, and for one that is broken or too long; a truncated file
    gives what it contains. The caller bounds this process's time.
    """
    import numpy as np

    pcm = bytearray()
    last = decode(DecodeJob(data, limits.audio_seconds), pcm.extend, lambda _seconds: None)
    if last.why:
        raise Refusal(f"the audio: {last.why}", TOO_LARGE if last.code == TOO_LONG else REFUSED)
    pcm += last.pcm
    samples: NDArray[np.float32] = np.frombuffer(pcm, "<i2").astype(np.float32)
    samples /= 32768
    return samples
