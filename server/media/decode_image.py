"""Pictures of clients, decoded by Pillow. Runs in the child that may be killed: see :mod:`.processor_child`."""

import io
import warnings

from PIL import Image, ImageOps

from .decoded import DecodedLimits, check_image
from .refusal import REFUSED, Refusal


def decode_image(data: bytes, limits: DecodedLimits) -> Image.Image:
    """The picture, upright and in RGB. Raises :class:`.refusal.Refusal` for whatever is none or is too large."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data)) as image:
            check_image(*image.size, limits)
            return ImageOps.exif_transpose(image).convert("RGB")
    except Refusal:
        raise
    except (OSError, ValueError, SyntaxError, ArithmeticError, LookupError, TypeError, EOFError):
        raise Refusal("it is no picture that can be read", REFUSED) from None
