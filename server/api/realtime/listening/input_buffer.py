"""The input audio buffer: audio of no turn yet, in the client's format and in the models'.

Every sample has a position, counted in :data:`..common.formats.TICKS` from the session's first sample; clearing and
committing move nothing. Both formats are stored, since the client may retrieve its own.
"""

import math
from typing import Final, NamedTuple

from stentor.engine.layers.audio.prompt_resample import PromptResampler
from stentor.protocols.common.errors import BadRequest

from ..common.audio_budget import AudioBudget, AudioShare, unbounded
from ..common.formats import MODEL_AUDIO, Wire, to_ms

MAX_SECONDS: Final = 600
"""Longest audio in one buffer: 29 MB in the client's format, and 19 MB in the models'."""
MIN_COMMIT_MS: Final = 100


class Clip(NamedTuple):
    """A stretch of the client's audio."""

    start_ms: int
    end_ms: int
    audio: bytes
    """In the session's format."""
    pcm: bytes
    """In the models' format."""


class Track:
    """Samples of one rate from position ``begin`` on; the oldest can be forgotten."""

    def __init__(self, wire: Wire, begin: int = 0, hold: AudioBudget | None = None) -> None:
        self.wire: Final = wire
        self._data = bytearray()
        self._begin = begin
        self._hold = hold or unbounded().hold()

    @property
    def begin(self) -> int:
        return self._begin

    @property
    def end(self) -> int:
        return self._begin + len(self._data) // self.wire.sample_bytes * self.wire.ticks

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._data)

    def append(self, audio: bytes) -> None:
        self._data += audio
        self._hold.set(len(self._data))

    def forget(self, until: int) -> None:
        """Drops audio before ``until``."""
        count = min(max(0, until - self._begin) // self.wire.ticks, len(self._data) // self.wire.sample_bytes)
        del self._data[: count * self.wire.sample_bytes]
        self._begin += count * self.wire.ticks
        self._hold.set(len(self._data))

    def cut(self, end: int) -> None:
        """Drops audio from ``end`` on."""
        del self._data[self._index(end) :]
        self._hold.set(len(self._data))

    def move(self, by: int) -> None:
        """Moves all positions by ``by``."""
        self._begin += by

    def between(self, begin: int, end: int) -> bytes:
        """The available samples of [begin, end)."""
        first, last = self._index(begin), self._index(end)
        return bytes(self._data[first:last])

    def _index(self, position: int) -> int:
        return max(0, position - self._begin) // self.wire.ticks * self.wire.sample_bytes


class InputBuffer:
    """The buffer of one session. Audio beyond ``max_seconds`` is refused."""

    def __init__(self, wire: Wire, max_seconds: float = MAX_SECONDS, share: AudioShare | None = None) -> None:
        self._max_seconds = max_seconds
        self._share = share or unbounded()
        self._half = b""
        self._sent = Track(wire, 0, self._share.hold())
        self._resampled = Track(MODEL_AUDIO, 0, self._share.hold())
        self._resampler = PromptResampler(wire.rate, MODEL_AUDIO.rate)

    @property
    def wire(self) -> Wire:
        return self._sent.wire

    @property
    def begin(self) -> int:
        """Position of the oldest stored sample."""
        return self._sent.begin

    @property
    def received(self) -> int:
        """Position after the last sample."""
        return self._sent.end

    @property
    def resampled_end(self) -> int:
        """Position up to which the audio has been resampled: a little behind :attr:`received`."""
        return self._resampled.end

    @property
    def model_bytes(self) -> int:
        """Bytes stored in the models' format."""
        return self._resampled.size

    def append(self, audio: bytes) -> bytes:
        """Stores more of the client's audio; returns the new audio in the models' format.

        Half a sample waits for its other half. Raises ``BadRequest`` if the buffer would be too long.
        """
        self.check_append(audio)
        wire = self.wire
        audio = self._half + audio
        whole = len(audio) - len(audio) % wire.sample_bytes
        audio, self._half = audio[:whole], audio[whole:]
        self._sent.append(audio)
        return self._keep(self._resampler.push(wire.decode(audio)))

    def check_append(self, audio: bytes) -> None:
        """Raises ``BadRequest`` where :meth:`append` would."""
        wire = self.wire
        whole = (len(self._half) + len(audio)) // wire.sample_bytes * wire.sample_bytes
        held = (self.received - self.begin) / (wire.rate * wire.ticks)
        if held + whole / wire.bytes_a_second > self._max_seconds:
            raise BadRequest(
                f"`audio`: the input audio buffer holds {held:.0f} s and would exceed {self._max_seconds:.0f} s. "
                "Commit or clear it first.",
                "audio",
                code="input_audio_buffer_full",
            )

    def flush(self) -> bytes:
        """The resampler's remaining audio in the models' format: all audio has been returned then."""
        rest = self._keep(self._resampler.finish())
        self._resampler = PromptResampler(self.wire.rate, MODEL_AUDIO.rate)
        self._half = b""
        if self._resampled.end != self.received:  # by less than a sample: later audio must not drift
            self._resampled.move(self.received - self._resampled.end)
        return rest

    def check_change(self, wire: Wire) -> None:
        """Raises ``Overloaded`` where the form that :meth:`change` makes would be more than all sessions may hold."""
        if not wire.same_as(self.wire):
            self._share.check(math.ceil(self._sent.size / self.wire.bytes_a_second * wire.bytes_a_second))

    def change(self, wire: Wire) -> bytes:
        """Later audio has another format: stored audio is flushed, and its old format dropped."""
        if wire.same_as(self.wire):
            return b""
        rest = self.flush()
        begin, end = self._sent.begin, self._sent.end
        self._sent.forget(end)
        self._resampler = PromptResampler(wire.rate, MODEL_AUDIO.rate)
        pcm = self._resampled.between(begin, end)
        self._sent = Track(wire, begin if pcm else end, self._share.hold())
        if pcm:
            self._sent.append(wire.encode(PromptResampler(MODEL_AUDIO.rate, wire.rate).finish(pcm)))
            self._sent.move(end - self._sent.end)
        return rest

    def forget(self, until: int) -> None:
        """Drops audio before position ``until``, which belongs to no turn."""
        self._sent.forget(until)
        self._resampled.forget(until)

    def take(self, begin: int, end: int) -> Clip:
        """The audio of [begin, end); audio before ``end`` is dropped."""
        begin = max(begin, self.begin)
        clip = self.look(begin, end)
        self.forget(end)
        return clip

    def look(self, begin: int, end: int) -> Clip:
        audio, pcm = self._sent.between(begin, end), self._resampled.between(begin, end)
        return Clip(to_ms(begin), to_ms(end), audio, pcm)

    def check_commit(self) -> None:
        """Raises ``BadRequest`` (``input_audio_buffer_commit_empty``) if less than 100 ms are stored."""
        held = (self.received - self.begin) * 1000 / (self.wire.rate * self.wire.ticks)
        if held < MIN_COMMIT_MS:
            raise BadRequest(
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{MIN_COMMIT_MS}ms of audio, but buffer only has {held:.2f}ms of audio.",
                code="input_audio_buffer_commit_empty",
            )

    def clear(self) -> None:
        """Forgets everything."""
        self.flush()
        self.forget(self.received)

    def _keep(self, pcm: bytes) -> bytes:
        self._resampled.append(pcm)
        return pcm
