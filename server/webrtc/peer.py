"""One connection with a client after its offer, over aiortc's transports: ICE, DTLS, SRTP and SCTP.

::

    datagrams ─► ICE ─► DTLS ─┬─ SRTP ─► Opus ─► on_audio(pcm)
                              └─ SCTP ─► data channel ─► on_message(bytes)
    next_frame(size) ─ every 20 ms ─► Opus ─► SRTP          send(message) ─► data channel

All of it runs on its owner's event loop. The owner calls :meth:`Peer.connect`, and always :meth:`Peer.close`.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import anyio
import av
import msgspec
from aiortc import (
    MediaStreamTrack,
    RTCCertificate,
    RTCDataChannel,
    RTCDtlsFingerprint,
    RTCDtlsParameters,
    RTCDtlsTransport,
    RTCIceGatherer,
    RTCIceParameters,
    RTCIceTransport,
    RTCRtpCodecParameters,
    RTCRtpSender,
    RTCSctpCapabilities,
    RTCSctpTransport,
)
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcrtpparameters import RTCRtpReceiveParameters, RTCRtpSendParameters
from aiortc.rtcsctptransport import DataChunk
from aiortc.rtp import AnyRtcpPacket, RtpPacket

from .ice import AnsweringIce
from .opus import FRAME_BYTES, FRAME_MS, OpusEncoder, OpusReceiver
from .sdp import Answer, Candidate, Fingerprint, Offer, write_answer

for _name in ("aiortc", "aioice"):
    logging.getLogger(_name).setLevel(logging.ERROR)  # they warn about clients' input

MAX_SSRCS: Final = 16
"""Sources of sound that one client may name in turn; only the last of them is heard."""
MAX_CHANNELS: Final = 8
MAX_STREAMS: Final = 16
"""SCTP streams in one direction."""
MAX_CHUNKS: Final = 1024
"""Pieces of messages that wait for others."""
MAX_BUFFERED: Final = 256 << 10
"""Bytes of messages on their way to the client, before more wait."""
_LATE_SECONDS: Final = 0.2
"""Behind which frames that are late are left out instead of sent at once."""


class Handlers(msgspec.Struct, frozen=True):
    """Receivers of events; called on the event loop, never awaited."""

    on_audio: Callable[[bytes], None]
    """More audio of the client, as pcm at :data:`.opus.RATE`."""
    on_message: Callable[[bytes], None]
    on_end: Callable[[], None]
    """Once, when the client has gone, or was never there."""
    next_frame: Callable[[int], bytes]
    """Audio for the client of this many bytes, as pcm at the same rate."""


class _Gatherer(RTCIceGatherer):
    def __init__(self, connection: AnsweringIce) -> None:
        super().__init__(iceServers=[])
        self._connection = connection


class _Sctp(RTCSctpTransport):
    """Holds no more data than it has announced to the client."""

    async def _receive_data_chunk(self, chunk: DataChunk) -> None:
        streams = self._inbound_streams
        if chunk.stream_id not in streams and len(streams) >= MAX_STREAMS:
            return
        if sum(len(stream.reassembly) for stream in streams.values()) >= MAX_CHUNKS:
            return
        if self._advertised_rwnd >= len(chunk.user_data):  # otherwise it is sent again
            await super()._receive_data_chunk(chunk)


class _Track(MediaStreamTrack):
    """Asks for a frame whenever it is time for one."""

    kind = "audio"

    def __init__(self, next_frame: Callable[[int], bytes]) -> None:
        super().__init__()
        self._next_frame = next_frame
        self._encoder = OpusEncoder()
        self._due = anyio.current_time()

    async def recv(self) -> "av.Packet[Any]":
        while self.readyState == "live":
            now = anyio.current_time()
            if now - self._due > _LATE_SECONDS:
                self._due = now
            await anyio.sleep_until(self._due)
            self._due += FRAME_MS / 1000
            for packet in self._encoder.encode(self._next_frame(FRAME_BYTES)):
                return packet
        raise MediaStreamError


class _Receiver:
    """Gets RTP packets from the DTLS transport; satisfies its ``RtpReceiver``."""

    def __init__(self, on_audio: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self._on_audio = on_audio
        self._end = end
        self._opus = OpusReceiver()
        self._ssrc: int | None = None
        self._ssrcs: set[int] = set()

    def _handle_disconnect(self) -> None:
        self._end()

    async def _handle_rtcp_packet(self, packet: AnyRtcpPacket) -> None:
        """RTCP is not needed: audio is not synchronised with other media."""

    async def _handle_rtp_packet(self, packet: RtpPacket, arrival_time_ms: int) -> None:
        if packet.ssrc != self._ssrc:
            self._ssrcs.add(packet.ssrc)
            if len(self._ssrcs) > MAX_SSRCS:
                self._end()
                return
            self._ssrc = packet.ssrc
            self._opus = OpusReceiver()
        if pcm := self._opus.push(packet):
            self._on_audio(pcm)


class Peer:
    """Our end of a connection; not to be used again once closed."""

    def __init__(self, offer: Offer, ice: AnsweringIce, label: str, handlers: Handlers) -> None:
        """``label`` is that of the data channel by which messages come and go."""
        self._offer = offer
        self._label = label
        self._handlers = handlers
        self._gatherer = _Gatherer(ice)
        self._ice = RTCIceTransport(self._gatherer)
        self._dtls = RTCDtlsTransport(self._ice, [RTCCertificate.generateCertificate()])
        self._dtls._set_role("client")
        self._dtls.on("statechange", self._dtls_changed)
        self._sctp = _Sctp(self._dtls)
        self._sctp.on("datachannel", self._channel_opened)
        self._sender = RTCRtpSender(_Track(handlers.next_frame), self._dtls)
        self._receiver = _Receiver(handlers.on_audio, self.end)
        self._channel: RTCDataChannel | None = None
        self._channels = 0
        self._room = anyio.Event()
        self._opened = anyio.Event()
        self.ended: Final = anyio.Event()
        """Set when the client has gone, or was never there."""

    @property
    def max_message_bytes(self) -> int:
        """Bytes of one message to the client."""
        return self._offer.max_message_bytes

    async def answer(self) -> str:
        """Begins to listen. Raises :class:`.ice.NoPort`."""
        await self._gatherer.gather()
        local = self._gatherer.getLocalParameters()
        assert local.usernameFragment is not None
        assert local.password is not None
        found = self._gatherer.getLocalCandidates()
        prints = [one for one in self._dtls.getLocalParameters().fingerprints if one.algorithm == "sha-256"]
        answer = Answer(
            local.usernameFragment,
            local.password,
            [Fingerprint(one.algorithm, one.value) for one in prints],
            [Candidate(one.ip, one.port, one.priority) for one in found],
            self._sender._ssrc,
            self._sender._stream_id,
        )
        return write_answer(self._offer, answer)

    async def connect(self) -> None:
        """Returns once the client has opened the data channel, or has gone: see :attr:`ended`."""
        offer = self._offer
        await self._ice.start(RTCIceParameters(offer.username, offer.password))
        if self._ice.state != "completed":
            self.end()
            return
        fingerprints = [RTCDtlsFingerprint(one.algorithm, one.value) for one in offer.fingerprints]
        await self._dtls.start(RTCDtlsParameters(fingerprints))
        if self._dtls.state != "connected":
            self.end()
            return
        opus = RTCRtpCodecParameters("audio/opus", clockRate=48_000, channels=2, payloadType=offer.opus)
        if offer.direction in ("sendrecv", "sendonly"):
            receives = RTCRtpReceiveParameters(codecs=[opus], muxId=offer.audio_mid)
            self._dtls._register_rtp_receiver(self._receiver, receives)
        if offer.direction in ("sendrecv", "recvonly"):
            sends = RTCRtpSendParameters(codecs=[opus], muxId=offer.audio_mid)
            sends.rtcp.cname = self._sender._stream_id
            await self._sender.send(sends)
        await self._sctp.start(RTCSctpCapabilities(offer.max_message_bytes), offer.sctp_port)
        await self._opened.wait()

    async def send(self, message: str) -> None:
        """Waits until there is room for it; it is dropped where the client has gone."""
        channel = self._channel
        while not self.ended.is_set() and channel is not None and channel.readyState == "open":
            if channel.bufferedAmount <= MAX_BUFFERED:
                channel.send(message)
                return
            self._room = anyio.Event()
            await self._room.wait()

    async def close(self) -> None:
        """May be called at any time, and again."""
        self.end()
        await self._sender.stop()
        await self._sctp.stop()
        await self._dtls.stop()
        await self._ice.stop()

    # ---- what aiortc tells

    def _dtls_changed(self) -> None:
        if self._dtls.state in ("closed", "failed"):
            self.end()

    def _channel_opened(self, channel: RTCDataChannel) -> None:
        self._channels += 1
        if self._channels > MAX_CHANNELS:
            self.end()
        if channel.label != self._label or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.bufferedAmountLowThreshold = MAX_BUFFERED // 2
        channel.on("bufferedamountlow", lambda: self._room.set())
        channel.on("message", self._message)
        channel.on("close", self.end)
        self._opened.set()

    def _message(self, message: str | bytes) -> None:
        self._handlers.on_message(message.encode() if isinstance(message, str) else message)

    def end(self) -> None:
        """Nothing more comes or goes."""
        if not self.ended.is_set():
            self.ended.set()
            self._opened.set()
            self._room.set()
            self._handlers.on_end()
