"""Decodes received Opus packets to gapless pcm in order, and encodes pcm as packets.

Received audio is not played here, so it needs no playback delay: a packet is decoded once those before it are decoded
or known to be lost. The decoder conceals losses, as libopus does for a packet without a frame.
"""

from fractions import Fraction
from typing import Any, Final, Protocol

import av
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame

from ..audio.resample import Resampler

RATE: Final = 24_000
"""Rate of pcm on both sides: signed 16 bits, little-endian, one channel."""
FRAME_MS: Final = 20
FRAME_BYTES: Final = RATE * FRAME_MS // 1000 * 2
CLOCK: Final = 48_000
"""Rate of RTP timestamps and of the decoder's output."""
MAX_WAIT: Final = 3
"""Packets for which one that is missing is waited for: 60 ms, as a rule."""
MAX_LOST: Final = 50
"""Packets in a row that are made up for; a longer hole is left out."""
MAX_SILENCE: Final = CLOCK
"""Ticks of a gap without lost packets: a client that sends nothing during silence."""
_HALF: Final = 1 << 15
_BITRATE: Final = 32_000
_SETTLED: Final = 10
"""Frames of silence after which the codec has nothing left to fade out."""


class Packet(Protocol):
    """The used fields of an RTP packet."""

    sequence_number: int
    timestamp: int
    payload: bytes


class OpusReceiver:
    """One stream of packets."""

    def __init__(self) -> None:
        codec = av.CodecContext.create("libopus", "r")
        assert isinstance(codec, AudioCodecContext)
        codec.format = "s16"
        codec.layout = "mono"
        codec.sample_rate = CLOCK
        self._codec = codec
        self._resampler = Resampler(CLOCK, RATE)
        self._next: int | None = None
        """Sequence number of the packet that is decoded next."""
        self._time = 0
        """Timestamp of the next packet without a gap."""
        self._early: dict[int, Packet] = {}
        self._head = b""
        """Of the last packet: its mode, which a packet without a frame has as well."""
        self.lost = 0
        """Packets that were made up for."""

    def push(self, packet: Packet) -> bytes:
        """Audio that is now in order, as pcm at :data:`RATE`."""
        if self._next is None:
            self._next, self._time = packet.sequence_number, packet.timestamp
        ahead = _ahead(packet.sequence_number, self._next)
        if ahead > MAX_LOST or ahead < -MAX_LOST:  # another stream, or so long after that this makes no difference
            pcm = self._rest()
            self._next, self._time = packet.sequence_number, packet.timestamp
            return pcm + self._in_order(packet)
        if ahead < 0:  # it was given up, or is here twice
            return b""
        if ahead == 0:
            return self._in_order(packet)
        self._early[packet.sequence_number] = packet
        return self._give_up() if ahead >= MAX_WAIT else b""

    def _in_order(self, packet: Packet) -> bytes:
        """That packet, and consecutive ones that have arrived."""
        pieces = []
        found: Packet | None = packet
        while found is not None:
            pieces.append(self._decode(found))
            assert self._next is not None
            self._next = (self._next + 1) & 0xFFFF
            found = self._early.pop(self._next, None)
        return b"".join(pieces)

    def _give_up(self) -> bytes:
        """Skips missing packets."""
        pieces = []
        assert self._next is not None
        while self._next not in self._early:
            pieces.append(self._made_up())
            self._next = (self._next + 1) & 0xFFFF
        return b"".join(pieces) + self._in_order(self._early.pop(self._next))

    def _rest(self) -> bytes:
        pieces = []
        while self._early:
            pieces.append(self._give_up())
        return b"".join(pieces)

    def _decode(self, packet: Packet) -> bytes:
        gap = (packet.timestamp - self._time) & 0xFFFFFFFF
        silence = b""
        if gap < 1 << 31:
            silence = bytes(2 * min(gap, MAX_SILENCE))
        self._time = packet.timestamp
        pcm = self._decoded(packet.payload) if packet.payload else b""
        if pcm:
            self._head = bytes((packet.payload[0] & 0xFC,))
        else:
            pcm = self._decoded(self._head)
        self._time = (self._time + len(pcm) // 2) & 0xFFFFFFFF
        return self._resampler.push(silence + pcm)

    def _made_up(self) -> bytes:
        pcm = self._decoded(self._head)
        self.lost += 1
        self._time = (self._time + len(pcm) // 2) & 0xFFFFFFFF
        return self._resampler.push(pcm)

    def _decoded(self, payload: bytes) -> bytes:
        """At :data:`CLOCK`; nothing where it cannot be decoded."""
        if not payload:
            return b""
        try:
            frames = self._codec.decode(av.Packet(payload))
        except av.FFmpegError:
            return b""
        return b"".join(bytes(frame.planes[0])[: 2 * frame.samples] for frame in frames)


def _ahead(number: int, of: int) -> int:
    """Distance of two sequence numbers, which wrap after 16 bits."""
    return ((number - of + _HALF) & 0xFFFF) - _HALF


class OpusEncoder:
    """Frames of :data:`FRAME_MS` as packets, each with its time."""

    def __init__(self) -> None:
        codec = av.CodecContext.create("libopus", "w")
        assert isinstance(codec, AudioCodecContext)
        codec.format = "s16"
        codec.layout = "mono"
        codec.sample_rate = RATE
        codec.bit_rate = _BITRATE
        codec.options = {"application": "voip", "frame_duration": str(FRAME_MS), "compression_level": "5"}
        self._codec = codec
        self._time = 0
        self._quiet = 0
        """Frames of silence in a row."""
        self._silence = b""
        """The last of their packets."""

    def encode(self, pcm: bytes) -> "list[av.Packet[Any]]":
        """Encodes :data:`FRAME_BYTES`. Continued silence is reused."""
        self._quiet = 0 if any(pcm) else self._quiet + 1
        if self._quiet > _SETTLED and self._silence:
            packet = av.Packet(self._silence)
            packet.pts, packet.time_base = self._time, Fraction(1, RATE)
            self._time += len(pcm) // 2
            return [packet]
        frame = AudioFrame(format="s16", layout="mono", samples=len(pcm) // 2)
        frame.planes[0].update(pcm)
        frame.sample_rate = RATE
        frame.time_base = Fraction(1, RATE)
        frame.pts = self._time
        self._time += frame.samples
        packets: list[av.Packet[Any]] = self._codec.encode(frame)
        for packet in packets:
            packet.pts = frame.pts  # counted from the first frame, without the codec's delay
            self._silence = bytes(packet)
        return packets
