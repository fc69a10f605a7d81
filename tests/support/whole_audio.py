"""Audio resampled and encoded at once; the server does both piece by piece."""

from stentor.protocols.openai.speech import SpeechFormat
from stentor.server.audio.encode import AudioEncoder, wav_header
from stentor.server.audio.resample import Resampler


def resample(pcm: bytes, source_rate: int, target_rate: int) -> bytes:
    return Resampler(source_rate, target_rate).finish(pcm)


def encode_whole(pcm: bytes, format: SpeechFormat, rate: int) -> bytes:
    """A wav says how long it is."""
    if format == "wav":
        return wav_header(rate, len(pcm)) + pcm
    encoder = AudioEncoder(format, rate)
    return encoder.push(pcm) + encoder.finish()
