"""The formats in which sessions send and receive audio."""

from typing import Final

from stentor.protocols.ipc.audio import SAMPLE_RATE
from stentor.protocols.openai.realtime.session import AudioFormat, AudioPcm, AudioPcma, AudioPcmu

from ....audio.g711 import Law, decode, encode

TICKS: Final = 48_000
"""A second: a sample of any of our rates is a whole number of ticks."""
_PCM_RATE: Final = 24_000
_TELEPHONE_RATE: Final = 8_000


class Wire:
    """One format: pcm in samples of two bytes, or one of the two laws of G.711, of one byte."""

    def __init__(self, rate: int, law: Law | None = None) -> None:
        self.rate: Final = rate
        self.sample_bytes: Final = 2 if law is None else 1
        self.ticks: Final = TICKS // rate
        """Ticks of one sample."""
        self._law: Final = law

    @classmethod
    def of(cls, format: AudioFormat) -> "Wire":
        match format:
            case AudioPcm():
                return cls(_PCM_RATE)
            case AudioPcmu():
                return cls(_TELEPHONE_RATE, "pcmu")
            case AudioPcma():
                return cls(_TELEPHONE_RATE, "pcma")

    @property
    def bytes_a_second(self) -> int:
        return self.rate * self.sample_bytes

    def decode(self, audio: bytes) -> bytes:
        """Decodes to pcm at the same rate."""
        return audio if self._law is None else decode(self._law, audio)

    def encode(self, pcm: bytes) -> bytes:
        """Encodes whole samples at :attr:`rate`."""
        return pcm if self._law is None else encode(self._law, pcm)

    def same_as(self, other: "Wire") -> bool:
        return (self.rate, self._law) == (other.rate, other._law)


MODEL_AUDIO: Final = Wire(SAMPLE_RATE)
"""The format of transcription models and voice detector."""


def to_ms(ticks: int) -> int:
    """Whole milliseconds."""
    return ticks * 1000 // TICKS


def to_ticks(ms: int) -> int:
    return ms * TICKS // 1000
