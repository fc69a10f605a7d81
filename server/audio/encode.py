"""Encodes pcm in the formats of speech responses, piece by piece.

All but ``pcm`` and ``wav`` use PyAV's encoders, with containers that never seek back, so that written data can be sent.
"""

import struct
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import msgspec

from stentor.protocols.openai.speech import SpeechFormat

from .resample import Resampler

if TYPE_CHECKING:
    import av

MEDIA_TYPES: Final[dict[SpeechFormat, str]] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
PCM_RATE: Final = 24_000
"""Rate of the format ``pcm``, which has no header."""

_PIECE_SECONDS: Final = 0.25
"""Longest PyAV frame."""
_UNKNOWN_LENGTH: Final = 0xFFFFFFFF
"""In the header of a file that is sent while it is made: players read on until it ends."""


class _Codec(msgspec.Struct, frozen=True):
    container: str
    name: str
    rates: tuple[int, ...] = ()
    """Supported rates, ascending; empty means all."""
    bit_rate: int | None = None
    options: tuple[tuple[str, str], ...] = ()
    """Options of the container."""

    def rate_for(self, rate: int) -> int:
        """The lowest that loses nothing of ``rate``, or the highest there is."""
        return rate if not self.rates else next((known for known in self.rates if known >= rate), self.rates[-1])


_MPEG_RATES: Final = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_CODECS: Final[dict[SpeechFormat, _Codec]] = {
    # the first frame has the length for players, and would have to be written last
    "mp3": _Codec("mp3", "libmp3lame", _MPEG_RATES, 96_000, (("write_xing", "0"), ("id3v2_version", "0"))),
    # a page a tenth of a second: of one a second the first would be late
    "opus": _Codec("ogg", "libopus", (8_000, 12_000, 16_000, 24_000, 48_000), 48_000, (("page_duration", "100000"),)),
    "aac": _Codec("adts", "aac", _MPEG_RATES, 96_000),
    "flac": _Codec("flac", "flac"),
}


class AudioEncoder:
    """From pcm at ``rate`` to one file or stream. Owned by one task; not safe for threads.

    A call takes some milliseconds a second of audio (aac the most), so streams use :func:`encoded`, which calls it off
    the event loop.
    """

    def __init__(self, format: SpeechFormat, rate: int) -> None:
        """``rate`` in samples a second; an encoder that does not take it is given another. Raises ``ValueError``."""
        self.format: Final = format
        self.media_type: Final = MEDIA_TYPES[format]
        codec = _CODECS.get(format)
        if codec is not None:
            self.rate = codec.rate_for(rate)
        else:
            self.rate = PCM_RATE if format == "pcm" else rate
        """Output samples a second (always 48 000 for Opus)."""
        self._resampler = Resampler(rate, self.rate)
        self._file: _File | None = None if codec is None else _File(codec, self.rate)
        self._header = wav_header(rate) if format == "wav" else b""

    def push(self, pcm: bytes) -> bytes:
        """Data to send after ``pcm``, possibly none: encoders work in frames."""
        return self._encode(self._resampler.push(pcm))

    def finish(self) -> bytes:
        """The rest; with it the file is whole. The encoder takes nothing more."""
        rest = self._encode(self._resampler.finish())
        return rest if self._file is None else rest + self._file.finish()

    def _encode(self, pcm: bytes) -> bytes:
        if self._file is not None:
            return self._file.push(pcm)
        head, self._header = self._header, b""
        return head + pcm


async def encoded(pieces: AsyncIterator[bytes], format: SpeechFormat, rate: int) -> AsyncGenerator[bytes, None]:
    """Pieces of pcm as pieces of a file, each encoded in a thread; those that would be empty are left out."""
    encoder = await anyio.to_thread.run_sync(AudioEncoder, format, rate)
    async for piece in pieces:
        if data := await anyio.to_thread.run_sync(encoder.push, piece):
            yield data
    if data := await anyio.to_thread.run_sync(encoder.finish):
        yield data


def wav_header(rate: int, size: int | None = None) -> bytes:
    """Of ``size`` bytes of pcm, or of as many as follow.

    ::

        RIFF size WAVE | fmt_ 16 format=1 channels=1 rate bytes/s bytes/sample bits | data size
    """
    whole, data = (_UNKNOWN_LENGTH, _UNKNOWN_LENGTH) if size is None else (size + 36, size)
    fields = (b"RIFF", whole, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", data)
    return struct.pack("<4sI4s4sIHHIIHH4sI", *fields)


class _File:
    """One container of PyAV's with one stream."""

    def __init__(self, codec: _Codec, rate: int) -> None:
        import av  # late: see the package
        from av.audio.resampler import AudioResampler

        self._av = av
        self._rate = rate
        self._written = _Written()
        self._container = av.open(self._written, "w", format=codec.container, options=dict(codec.options))
        stream = self._container.add_stream(codec.name, rate=rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        self._stream: Final = stream
        if codec.bit_rate is not None:
            self._stream.bit_rate = codec.bit_rate
        context = self._stream.codec_context
        formats = context.codec.audio_formats
        self._converter = AudioResampler(format=formats[0].name if formats else "s16", layout="mono", rate=rate)
        self._time = 0
        self._finished = False

    def push(self, pcm: bytes) -> bytes:
        import numpy as np

        if self._finished:
            raise ValueError("the encoder has finished")
        samples = np.frombuffer(pcm, np.int16)
        step = max(1, int(self._rate * _PIECE_SECONDS))
        for start in range(0, len(samples), step):
            piece = samples[start : start + step]
            frame = self._av.AudioFrame.from_ndarray(piece[np.newaxis], format="s16", layout="mono")
            frame.sample_rate = self._rate
            frame.pts = self._time
            self._time += len(piece)
            self._encode(frame)
        return self._written.take()

    def _encode(self, frame: "av.AudioFrame | None") -> None:
        for converted in self._converter.resample(frame):
            for packet in self._stream.encode(converted):
                self._container.mux(packet)

    def finish(self) -> bytes:
        if self._finished:
            raise ValueError("the encoder has finished")
        self._finished = True
        if self._time == 0:
            self._container.start_encoding()
        else:
            self._encode(None)
        for packet in self._stream.encode(None):
            self._container.mux(packet)
        self._container.close()
        return self._written.take()


class _Written:
    """The file that PyAV writes to, which cannot seek."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data
