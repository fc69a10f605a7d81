"""Files made to harm a decoder, or that no decoder can read."""

import io
import os
import struct
from functools import cache

import av

from stentor.server.audio.encode import wav_header
from stentor.tests.server.audio.voices import file_of, tone

SILENT_OPUS = {20: b"\x08", 60: b"\x18"}
"""Packets of so many milliseconds that hold nothing: the decoder makes up what is missing."""


@cache
def silent_opus(seconds: float, container: str = "ogg", ticks: int = 2880, packet_ms: int = 60) -> bytes:
    """Silence in a byte for each 60 or 20 ms, and what the container adds.

    That may say that it is of another length: ``ticks`` of 48 kHz for each.
    """
    written = io.BytesIO()
    with av.open(written, "w", format=container) as file:
        stream = file.add_stream("libopus", rate=48_000, layout="mono")
        assert isinstance(stream, av.AudioStream)
        stream.codec_context.open()
        for number in range(int(seconds * 1000 / packet_ms)):
            packet = av.Packet(SILENT_OPUS[packet_ms])
            packet.stream = stream
            packet.time_base = stream.codec_context.time_base
            packet.pts = packet.dts = number * ticks
            packet.duration = ticks
            file.mux(packet)
    return written.getvalue()


def opus_that_claims(file: bytes, granule: int) -> bytes:
    """An Ogg file whose last page says that it ends there, in samples of 48 kHz; its checksum is right."""
    last = file.rindex(b"OggS")
    page = bytearray(file[last:])
    page[6:14] = struct.pack("<q", granule)
    page[22:26] = bytes(4)
    page[22:26] = struct.pack("<I", _ogg_checksum(page))
    return file[:last] + bytes(page)


def _ogg_checksum(page: bytes | bytearray) -> int:
    checksum = 0
    for byte in page:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (checksum << 1 ^ (0x04C11DB7 if checksum & 1 << 31 else 0)) & 0xFFFFFFFF
    return checksum


def video_only() -> bytes:
    written = io.BytesIO()
    with av.open(written, "w", format="mp4") as file:
        stream = file.add_stream("mpeg4", rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for _ in range(5):
            for packet in stream.encode(av.VideoFrame(64, 64, "yuv420p")):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    return written.getvalue()


def wav_with(
    rate: int = 16_000, channels: int = 1, bits: int = 16, size: int | None = None, data: bytes = b""
) -> bytes:
    """A wav whose header says what it is told."""
    header = bytearray(wav_header(16_000, len(data) if size is None else size))
    header[22:24] = struct.pack("<H", channels)
    header[24:36] = struct.pack("<IIHH", rate, rate * channels * bits // 8 & 2**32 - 1, channels * bits // 8, bits)
    return bytes(header) + data


def refused() -> dict[str, bytes]:
    """By what is wrong with them."""
    opus = file_of(tone(1), "ogg", "libopus")
    return {
        "one byte": b"x",
        "zeros": bytes(1 << 20),
        "anything": os.urandom(1 << 20),
        "a text": b"Dear Sir or Madam, " * 1000,
        "a web page": b"<!doctype html><title>Not Found</title>" + b"<p>Not Found</p>" * 100,
        "a picture": b"\x89PNG\r\n\x1a\n" + bytes(1000),
        "a playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        "a list of files": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        "a manifest": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"></MPD>',
        "a session description": b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nm=audio 9 RTP/AVP 0\r\nc=IN IP4 127.0.0.1\r\n",
        "subtitles": b"1\n00:00:00,000 --> 00:00:01,000\nhello\n",
        "a video without sound": video_only(),
        "a wav without samples": wav_with(),
        "a wav without a rate": wav_with(rate=0, data=tone(1)),
        "a wav of one sample a second": wav_with(rate=1, data=bytes(200)),
        "a wav of four billion samples a second": wav_with(rate=2**32 - 1, data=tone(1)),
        "a wav without channels": wav_with(channels=0, data=tone(1)),
        "only the head of a wav": wav_header(16_000)[:20],
        "only the head of an ogg": opus[:100],
        "the end of an ogg": opus[len(opus) // 2 :],
        "an mp4 that was cut": file_of(tone(1), "mp4", "aac")[:2000],
        "only magic numbers": b"OggS" * 1000,
        "only tags": b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + bytes(1000),
    }
