"""Pictures and videos that would cost a reader much, or lie about themselves: none of them larger than it must be."""

import io
import struct
import zlib
from typing import Final

import numpy as np
from PIL import Image

# ---- PNG


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int, height: int, pixels: bytes = b"", *more: tuple[bytes, bytes], bits: int = 8, kind: int = 2
) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    chunks = [(b"IHDR", head), *more, (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


_ZEROS: Final = zlib.compress(b"\0" * (20 << 20), 9)
_DOT: Final = b"\0\xff\0\0"


def _gif(width: int, height: int, frame: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + frame + b";"


def _gif_frame(width: int, height: int) -> bytes:
    return b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x4c\x01\0"


_GIF_DELAY: Final = b"!\xf9\4\0\1\0\0\0"


# ---- JPEG


def _jpeg(size: tuple[int, int] = (16, 16), **options: object) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(noise).save(out, "JPEG", **options)
    return out.getvalue()


def _resized_jpeg(width: int, height: int) -> bytes:
    data = bytearray(_jpeg())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def scans(count: int) -> bytes:
    """A progressive JPEG of 4096 by 4096 pixels that goes over them so often, in a few bytes each time."""
    data = bytearray(_jpeg(progressive=True))
    at = data.index(b"\xff\xc2") + 5
    data[at : at + 4] = struct.pack(">HH", 4096, 4096)
    start = data.index(b"\xff\xda")
    scan = bytes(data[start : data.index(b"\xff", start + 2 + struct.unpack_from(">H", data, start + 2)[0])])
    return bytes(data[:start]) + scan * count + b"\xff\xd9"


# ---- BMP, TIFF, WebP


def bmp(width: int, height: int, bits: int = 24, compression: int = 0, colours: int = 0) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, 0, 0, 0, colours, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info


def tiff(*entries: tuple[int, int, int, int], following: int = 0) -> bytes:
    """Entries are tag, type, count and value."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + body + struct.pack("<I", following)


def _tiff_of(width: int, height: int, compression: int = 1, samples: int = 1, offset: int = 8) -> bytes:
    long, short = 4, 3
    return tiff(
        (256, long, 1, width),
        (257, long, 1, height),
        (258, short, 1, 8),
        (259, short, 1, compression),
        (262, short, 1, 1),
        (273, long, 1, offset),
        (277, short, 1, samples),
        (278, long, 1, height),
        (279, long, 1, 4),
    )


def _webp(kind: bytes, data: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


_VP8X: Final = b"\x10\0\0\0" + b"\xff\xff\xff" * 2
_VP8L: Final = b"\x2f" + (16382 | 16382 << 14).to_bytes(4, "little") + bytes(20)
_VP8: Final = b"\x10\0\0\x9d\x01\x2a" + struct.pack("<HH", 16383, 16383) + bytes(20)

IMAGES: Final = {
    "nothing": b"",
    "noise": np.random.default_rng(0).bytes(5000),
    "a page": b"<!doctype html><script>alert(1)</script>",
    "svg that unfolds": b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><svg>&b;</svg>',
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
    "pdf": b"%PDF-1.7\n",
    "ppm": b"P6 9 9 255\n" + bytes(300),
    "ppm of a trillion": b"P6 999999 999999 255\n",
    "ico": b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0\x68\4\0\0\x16\0\0\0" + bytes(2000),
    "psd": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 30000, 30000, 8, 3) + bytes(100),
    "jpeg 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100),
    "avif": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(100),
    "icns": b"icns" + struct.pack(">I", 0xFFFFFFFF),
    "dds": b"DDS " + struct.pack("<IIII", 124, 0x1007, 60000, 60000) + bytes(112),
    "png of four billion": png(65535, 65535),
    "png of a line": png(2**31 - 1, 1),
    "png of nothing": png(0, 5),
    "png whose text unfolds": png(1, 1, _DOT, (b"zTXt", b"k\0\0" + _ZEROS)),
    "png of which most is missing": png(8000, 8000, b"\0" * 100, bits=1, kind=0),
    "png without an end": png(1, 1, _DOT)[:-30],
    "png whose sum is wrong": png(1, 1, _DOT).replace(b"\x08\x02\0\0\0", b"\x08\x06\0\0\0"),
    "png of three bits": png(1, 1, _DOT, bits=3),
    "png of a chunk without end": b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIHDR",
    "gif of four billion": _gif(65535, 65535, _gif_frame(1, 1)),
    "gif with a larger frame": _gif(1, 1, _gif_frame(65535, 65535)),
    "gif without a frame": _gif(5, 5, b""),
    "gif of extensions": _gif(5, 5, b"!\xfe\xff" + b"a" * 255 + b"\0"),
    "jpeg of four billion": _resized_jpeg(65535, 65535),
    "jpeg without height": _resized_jpeg(16, 0),
    "jpeg of a head": _jpeg()[:20],
    "jpeg without pixels": _jpeg()[: _jpeg().index(b"\xff\xda")] + b"\xff\xd9",
    "jpeg of a thousand passes": scans(1000),
    "jpeg that is cut short": _jpeg((200, 200))[:5000],
    "bmp of a line": bmp(2**31 - 1, 1),
    "bmp upside down": bmp(40000, -(2**31)),
    "bmp without width": bmp(-5, 5),
    "bmp of a billion colours": bmp(5, 5, 8, 0, 2**30),
    "bmp that runs": bmp(8000, 8000, 8, 1),
    "tiff of all pixels": _tiff_of(2**32 - 1, 2**32 - 1),
    "tiff of a gigabyte": _tiff_of(32768, 32768),
    "tiff whose pixels lie elsewhere": _tiff_of(100, 100, offset=2**31),
    "tiff of many samples": _tiff_of(100, 100, samples=60000),
    "tiff that is packed by nobody": _tiff_of(100, 100, compression=60000),
    "tiff of broken jpeg": _tiff_of(100, 100, compression=7),
    "tiff of broken lzw": _tiff_of(100, 100, compression=5),
    "tiff in a circle": tiff((256, 4, 1, 1), following=8),
    "tiff of lists": tiff((256, 4, 2**31, 8), (257, 4, 2**32 - 1, 8)),
    "webp of a trillion": _webp(b"VP8X", _VP8X),
    "webp without loss": _webp(b"VP8L", _VP8L),
    "webp with loss": _webp(b"VP8 ", _VP8),
    "webp of nothing": _webp(b"VP8 ", b""),
    "webp of something else": _webp(b"XXXX", bytes(100)),
}

# ---- what says that it is a video

VIDEOS: Final = {
    "nothing": b"",
    "noise": np.random.default_rng(1).bytes(5000),
    "a playlist of HLS": b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n",
    "a list of files": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "a manifest of DASH": b'<?xml version="1.0"?><MPD><BaseURL>http://169.254.169.254/</BaseURL></MPD>',
    "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
    "mp4 of boxes in boxes": b"\0\0\0\x08ftyp" + b"\0\0\0\x08moov" * 1000,
    "mp4 of a box without end": b"\0\0\0\x10ftypisom\0\0\0\0" + b"\0\0\0\x01moov" + b"\xff" * 8,
    "webm of a head": b"\x1aE\xdf\xa3" + bytes(40),
    "matroska without end": b"\x1aE\xdf\xa3\x01" + b"\xff" * 7 + b"\x18S\x80g\x01" + b"\xff" * 7,
    "avi of a head": b"RIFF\xff\xff\xff\xffAVI LIST\xff\xff\xff\xff" + bytes(100),
    "gif of a hundred thousand frames": _gif(1, 1, (_GIF_DELAY + _gif_frame(1, 1)) * 100_000),
    "gif of four billion": _gif(65535, 65535, _gif_frame(1, 1)),
}
