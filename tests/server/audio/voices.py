"""Sounds for tests: something that a voice detector takes for speech, made without a model."""

import io
from typing import Any

import av
import numpy as np

RATE = 16_000


def noise(seconds: float, rate: int = RATE, level: float = 0.01) -> bytes:
    """Pcm without speech."""
    samples = np.random.default_rng(0).standard_normal(int(seconds * rate)) * level
    return pcm_of(samples)


def tone(seconds: float, rate: int = RATE, hertz: float = 440.0) -> bytes:
    return pcm_of(0.4 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate))


def voice(seconds: float) -> bytes:
    """Vowels at 16 kHz: pulses of some 120 Hz through resonances that wander, four syllables a second."""
    count = int(seconds * RATE)
    time = np.arange(count) / RATE
    phase = np.cumsum(120 + 15 * np.sin(2 * np.pi * 0.7 * time)) / RATE
    source = np.diff(np.floor(phase), prepend=0.0) + 0.01 * np.random.default_rng(1).standard_normal(count)
    sound = np.zeros(count)
    for centre, width, sway in ((600, 80, 200), (1400, 100, 500), (2600, 150, 200)):
        sound += _resonance(source, centre + sway * np.sin(2 * np.pi * 1.3 * time + centre), width)
    sound *= 0.6 + 0.4 * np.sin(2 * np.pi * 4 * time)
    return pcm_of(0.5 * sound / np.abs(sound).max())


def _resonance(source: Any, hertz: Any, width: float) -> Any:
    shrink = np.exp(-np.pi * width / RATE)
    turn = 2 * shrink * np.cos(2 * np.pi * hertz / RATE)
    out = np.zeros(len(source))
    for at in range(2, len(source)):
        out[at] = source[at] + turn[at] * out[at - 1] - shrink * shrink * out[at - 2]
    return out


def pcm_of(samples: Any) -> bytes:
    data: bytes = np.clip(np.rint(samples * 32767), -32768, 32767).astype("<i2").tobytes()
    return data


def file_of(
    pcm: bytes,
    container: str,
    codec: str,
    rate: int = RATE,
    layout: str = "mono",
    options: dict[str, str] | None = None,
) -> bytes:
    """A whole file as a recorder writes it, with all channels alike."""
    written = io.BytesIO()
    with av.open(written, "w", format=container, options=options or {}) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, av.AudioStream)
        formats = stream.codec_context.codec.audio_formats
        converter = av.AudioResampler(format=formats[0].name if formats else "s16", layout=layout, rate=rate)
        channels = stream.codec_context.layout.nb_channels
        samples = np.frombuffer(pcm, "<i2")
        for start in range(0, len(samples), rate):
            piece = np.repeat(samples[start : start + rate], channels)[np.newaxis]
            frame = av.AudioFrame.from_ndarray(piece, format="s16", layout=layout)
            frame.sample_rate, frame.pts = rate, start
            for converted in converter.resample(frame):
                for packet in stream.encode(converted):
                    file.mux(packet)
        for converted in converter.resample(None):
            for packet in stream.encode(converted):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    return written.getvalue()


def samples_of(file: bytes, container: str | None = None) -> tuple[int, int]:
    """How many a decoder finds in a file, and its rate."""
    with av.open(io.BytesIO(file), "r", format=container) as opened:
        count = sum(frame.samples for frame in opened.decode(audio=0))
        return count, opened.streams.audio[0].rate
