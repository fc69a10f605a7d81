"""Decodes pictures of clients with Pillow. Pure functions, for a killable child.

The header gives the memory needed, before a pixel is decoded. Only the first picture of a file is used; colour
profiles, comments and data behind the picture's end are ignored.
"""

import ctypes
import io
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..refusal import Refusal
from .decoded import DecodedLimits, check_image, too_much

if TYPE_CHECKING:
    from PIL import Image

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Names in Pillow."""
Opaque = Callable[["Image.Image"], "Image.Image"]
"""Puts a picture in RGBA on something: the same in RGB."""
_KNOWN: Final = "PNG, JPEG, WebP, GIF, BMP or TIFF"
_SCANS: Final = 12
"""Most passes over a JPEG of the largest allowed size; a smaller one may have more. A pass costs as much as a file."""
_START_OF_SCAN: Final = b"\xff\xda"
_CANVAS_OF_VP8X: Final = slice(24, 30)


def on_white(image: "Image.Image") -> "Image.Image":
    """A picture in RGBA on white, in RGB."""
    from PIL import Image

    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    white.alpha_composite(image)
    return white.convert("RGB")


def decode_image(data: bytes, limits: DecodedLimits, opaque: Opaque = on_white) -> "Image.Image":
    """The picture, upright and in RGB; ``opaque`` says what is behind it where it is transparent.

    Raises :class:`..refusal.Refusal` for a file that is in none of :data:`FORMATS`, broken, truncated or too large.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings(action="ignore"):
            _check_head(data, limits)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                check_image(*image.size, limits)
                _check_scans(data, image, limits)
                image.load()
                check_image(*image.size, limits)
                shown = _upright(_in_colours(image), _orientation(image))
                shown = opaque(shown) if shown.mode == "RGBA" else shown
                shown.info = {}  # a colour profile among others
                return shown
    except Refusal:
        raise
    except Image.DecompressionBombError:
        raise too_much("image", "more pixels", f"{limits.pixels} pixels") from None
    except MemoryError:
        raise Refusal("the image needs too much memory to decode") from None
    except Exception:  # any error of a decoder on a broken file
        raise Refusal(f"this is no image that can be read, or it is cut short ({_KNOWN} are read)") from None


def rehearse() -> None:
    """Imports the modules for pictures while files can still be opened, and silences libtiff's messages about files,
    which would go to the server's log."""
    from PIL import Image

    for form in FORMATS:
        out = io.BytesIO()
        Image.new("RGB", (2, 2)).save(out, form)
        decode_image(out.getvalue(), DecodedLimits())
    loaded = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libtiff" in line)
    if (library := next(loaded, None)) is not None:
        ctypes.CDLL(library).TIFFSetErrorHandler(None)


def _check_head(data: bytes, limits: DecodedLimits) -> None:
    """The size of a WebP file, whose reader takes memory for its canvas as soon as it is opened."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return
    match data[12:16]:
        case b"VP8X" if len(data) >= _CANVAS_OF_VP8X.stop:
            canvas = data[_CANVAS_OF_VP8X]
            size = int.from_bytes(canvas[:3], "little") + 1, int.from_bytes(canvas[3:], "little") + 1
        case b"VP8L" if len(data) >= 25:
            bits = int.from_bytes(data[21:25], "little")
            size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if len(data) >= 30:
            width, height = struct.unpack_from("<HH", data, 26)
            size = width & 0x3FFF, height & 0x3FFF
        case _:
            raise Refusal("the WebP image is broken")
    check_image(*size, limits)


def _check_scans(data: bytes, image: "Image.Image", limits: DecodedLimits) -> None:
    """A progressive JPEG of a few kilobytes may go over all its pixels a thousand times."""
    if image.format not in ("JPEG", "MPO"):
        return
    scans = data.count(_START_OF_SCAN)
    if scans * image.width * image.height > _SCANS * limits.pixels:
        raise too_much("image", f"{scans} passes over its pixels", f"{_SCANS} over {limits.pixels} pixels")


def _in_colours(image: "Image.Image") -> "Image.Image":
    """In RGB, or in RGBA if it may be transparent."""
    if image.mode.startswith("I") or image.mode == "F":
        return _in_eight_bits(image)
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        return image.convert("RGBA")
    return image.convert("RGB")


def _upright(image: "Image.Image", orientation: object) -> "Image.Image":
    """``orientation`` as EXIF counts: mirrored, turned, or both."""
    from PIL import Image

    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    turn = turns.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _orientation(image: "Image.Image") -> object:
    """Which way is up, as far as the file says it readably."""
    from PIL import ExifTags

    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # any error of its reader: the picture itself may be intact
        return None


def _in_eight_bits(image: "Image.Image") -> "Image.Image":
    """Grey of 16 or more bits a pixel."""
    import numpy as np
    from PIL import Image

    grey = np.asarray(image)
    if image.mode == "F":
        grey = np.nan_to_num(grey) * (255 if np.nanmax(grey, initial=0) <= 1 else 1)
    elif image.mode.startswith("I;16") or grey.max(initial=0) > 255:
        grey = grey >> 8
    return Image.fromarray(np.clip(grey, 0, 255).astype(np.uint8)).convert("RGB")
