"""Videos and sounds that would cost a reader much, or lie about themselves, beside those that the benchmark makes."""

import struct
from typing import Final

import numpy as np

from stentor.loadtest import hostile_files
from stentor.server.audio.encode import wav_header
from stentor.tests.server.media.videos import video


def _patched(data: bytes, box: bytes, offset: int, value: bytes) -> bytes:
    patched = bytearray(data)
    at = patched.index(box) + len(box) + offset
    patched[at : at + len(value)] = value
    return bytes(patched)


_MP4: Final = video()

VIDEOS: Final = {
    **hostile_files.VIDEOS,
    "mp4 of a head": _MP4[:40],
    "mp4 without its index": _MP4[: _MP4.index(b"moov") - 4],
    "another codec": video(codec="ffv1", form="matroska"),
}
LYING_VIDEOS: Final = {
    "mp4 of a century": _patched(_MP4, b"stts", 12, b"\x7f\xff\xff\xff"),
    "mp4 of a wide picture": _patched(_MP4, b"mp4v", 24, b"\xff\xff\xff\xff"),
    "mp4 of more frames than it has": _patched(_MP4, b"stts", 8, b"\x7f\xff\xff\xff"),
    "mp4 whose frames end late": _patched(_MP4, b"stsz", 12, b"\x7f\xff\xff\xff"),
}
"""Of six frames of 32 by 16 pixels."""
SOUNDS: Final = {
    "nothing": b"",
    "noise": np.random.default_rng(2).bytes(5000),
    "a playlist": b"#EXTM3U\nfile:///etc/passwd\n",
    "wav of a head": wav_header(16_000, 2**31),
    "wav of no channels": wav_header(16_000, 8).replace(b"\x01\0\x01\0", b"\x01\0\0\0") + bytes(8),
    "wav of no rate": wav_header(16_000, 8).replace(struct.pack("<I", 16_000), bytes(4)) + bytes(8),
    "wav of a rate beyond all": wav_header(16_000, 8).replace(struct.pack("<I", 16_000), b"\xff" * 4) + bytes(8),
    "mp3 of a tag": b"ID3\4\0\0\x7f\x7f\x7f\x7f" + bytes(100),
    "flac of a head": b"fLaC\0\0\0\x22" + b"\xff" * 34,
    "ogg of a page": b"OggS\0\2" + bytes(20) + b"\1\xff" + bytes(255),
    "caf without end": b"caff\0\1\0\0desc" + b"\xff" * 8 + bytes(32),
    "a video without sound": _MP4,
}
