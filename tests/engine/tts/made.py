"""What tests of voices share: samples of a sentence, and recordings."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor.engine.tts.backend import Stop, Stopped
from stentor.protocols.ipc.speech import VoicePlace


def spoken(speaker: Any, text: str, voice: VoicePlace) -> tuple[Any, list[int]]:
    """Samples of a sentence, and the lengths of its parts in samples."""
    parts: list[bytes] = []
    rest = speaker.speak(text, voice, 1.0, Stop(), parts.append)
    pcm = [*parts, rest]
    return np.frombuffer(b"".join(pcm), "<i2"), [len(part) // 2 for part in pcm]


def stopped() -> Stop:
    """That of a sentence that nobody wants any more."""
    stop = Stop()
    stop.set()
    return stop


def parts_until_stopped(speaker: Any, text: str, voice: VoicePlace) -> int:
    """How many parts of a sentence are made of which nobody wants more than the first."""
    stop, parts = Stop(), []

    def heard(pcm: bytes) -> None:
        parts.append(pcm)
        stop.set()

    with pytest.raises(Stopped):
        speaker.speak(text, voice, 1.0, stop, heard)
    return len(parts)


def as_pcm(samples: Any) -> Any:
    """Their samples, a tensor, as ours are scaled."""
    return np.clip(samples.detach().numpy() * 32767, -32767, 32767)


def close(samples: Any, wanted: Any, within: int = 8) -> bool:
    """Whether samples are the wanted ones, which are no silence."""
    assert samples.shape == wanted.shape
    assert np.abs(wanted).max() > 1000
    return bool(np.abs(samples - wanted).max() <= within)


def write_tone(file: Path, rate: int, seconds: float = 0.5, channels: int = 1) -> Any:
    """Write a recording, and return its samples."""
    tone = (8000 * np.sin(np.arange(int(rate * seconds)) / 7)).astype("<i2")
    with wave.open(str(file), "wb") as made:
        made.setparams((channels, 2, rate, 0, "NONE", ""))
        made.writeframes(np.repeat(tone, channels).tobytes())
    return tone.astype(np.float32) / 32768
