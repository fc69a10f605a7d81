"""Allowed containers and codecs, of the hundreds in PyAV.

Playlists (hls, dash, concat) and others that name files are excluded. Nothing here decodes.
"""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.stream import Stream

DEMUXERS: Final = ("wav", "mp3", "aac", "ogg", "flac", "mov", "matroska", "webm", "aiff", "caf", "au", "w64")
"""Names in FFmpeg; ``mov`` includes mp4, m4a and 3gp."""
DECODERS: Final = (
    "aac",
    "alac",
    "flac",
    "mp3float",
    "mp3",
    "mp2float",
    "mp2",
    "opus",
    "libopus",
    "vorbis",
    "pcm_u8",
    "pcm_s8",
    "pcm_s16le",
    "pcm_s16be",
    "pcm_s24le",
    "pcm_s24be",
    "pcm_s32le",
    "pcm_s32be",
    "pcm_f32le",
    "pcm_f32be",
    "pcm_f64le",
    "pcm_f64be",
    "pcm_alaw",
    "pcm_mulaw",
    "adpcm_ms",
    "adpcm_ima_wav",
)
KNOWN: Final = "wav, mp3, m4a, mp4, ogg, opus, flac, webm or aac"
"""For messages."""
_ID3: Final = 10
"""Bytes of the head of an ID3 tag."""
_MP4_BOXES: Final = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")


def allowing(demuxers: Sequence[str], decoders: Sequence[str]) -> dict[str, str]:
    """FFmpeg's options for a file that these may read, and nothing else."""
    return {
        "format_whitelist": ",".join(demuxers),
        "codec_whitelist": ",".join(decoders),
        "protocol_whitelist": "none",  # a file may name others
        "probesize": str(4 << 20),
    }


def opened(
    data: bytes, demuxer: str | None, options: dict[str, str], stream_of: Callable[["InputContainer"], "Stream"]
) -> "InputContainer":
    """A container that reads only the stream that ``stream_of`` finds in it; closed if that raises."""
    import av

    container = av.open(io.BytesIO(data), "r", format=demuxer, options=options, metadata_errors="ignore")
    try:
        stream = stream_of(container)
        for other in container.streams:
            if other is not stream:
                other.discard = av.stream.Discard.all
    except BaseException:
        container.close()
        raise
    return container


def demuxer_of(data: bytes) -> str | None:
    """The demuxer for these bytes, by how they begin; None if unknown."""
    match data[:4]:
        case b"RIFF" | b"RF64" if data[8:12] == b"WAVE":
            return "wav"
        case b"OggS":
            return "ogg"
        case b"fLaC":
            return "flac"
        case b"\x1aE\xdf\xa3":
            return "matroska"
        case b"FORM" if data[8:12] in (b"AIFF", b"AIFC"):
            return "aiff"
        case b"caff":
            return "caf"
        case b".snd":
            return "au"
        case b"riff":
            return "w64"
    if data[4:8] in _MP4_BOXES:
        return "mov"
    if data[:3] == b"ID3":
        return _after_tag(data)
    return _of_frames(data)


def _after_tag(data: bytes) -> str | None:
    size = 0
    for byte in data[6:_ID3]:
        size = size << 7 | byte & 0x7F
    after = data[_ID3 + size : _ID3 + size + 4]
    return "flac" if after == b"fLaC" else _of_frames(after) or "mp3"


def _of_frames(data: bytes) -> str | None:
    """By the head of an MPEG frame: twelve bits set, or eleven of them; then version and layer."""
    if len(data) < 2 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return None
    if data[1] & 0xF6 == 0xF0:  # layer 0 does not exist in MPEG audio; it marks ADTS
        return "aac"
    return "mp3" if data[1] & 0x06 else None
