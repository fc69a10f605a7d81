"""Pictures as clients send them, drawn from a seed."""

import io

import numpy as np
from PIL import Image


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise, in RGB."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(width: int, height: int, seed: int = 0) -> bytes:
    """The file of :func:`picture`."""
    file = io.BytesIO()
    picture(width, height, seed).save(file, "PNG")
    return file.getvalue()
