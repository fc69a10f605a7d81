"""G.711 (ITU-T, 1988): eight bits a sample by one of two logarithmic laws, usually at 8000 samples a second."""

from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import numpy as np

Law = Literal["pcmu", "pcma"]
"""µ-law (North America, Japan) and A-law (elsewhere)."""

_BIAS: Final = 0x84
"""µ-law's addition to a magnitude, so that every segment begins at a power of two."""
_CLIP: Final = 32635


def decode(law: Law, codes: bytes) -> bytes:
    """Codes as pcm at the same rate, two bytes for each."""
    import numpy as np  # late: see the package

    return bytes(_decoding(law)[np.frombuffer(codes, np.uint8)].data)


def encode(law: Law, pcm: bytes) -> bytes:
    """Pcm as codes at the same rate. Raises ``ValueError`` for half a sample."""
    import numpy as np  # late: see the package

    return bytes(_encoding(law)[np.frombuffer(pcm, "<u2")].data)


@cache
def _decoding(law: Law) -> "np.ndarray[Any, np.dtype[np.int16]]":
    """The sample of each code."""
    import numpy as np

    codes = np.arange(256)
    if law == "pcmu":
        codes = ~codes & 0xFF
        magnitude = (((codes & 0x0F) << 3) + _BIAS << ((codes >> 4) & 7)) - _BIAS
        return np.where(codes & 0x80, -magnitude, magnitude).astype("<i2")
    codes ^= 0x55
    segment = (codes >> 4) & 7
    within = ((codes & 0x0F) << 4) + 8
    magnitude = np.where(segment == 0, within, within + 0x100 << np.maximum(segment - 1, 0))
    return np.where(codes & 0x80, magnitude, -magnitude).astype("<i2")


@cache
def _encoding(law: Law) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Code of each sample, by its 16 bits. As in ITU-T G.191, -1 mirrors 0, and -2 mirrors 1."""
    import numpy as np

    samples = np.arange(1 << 16).astype(np.uint16).view(np.int16).astype(np.int32)
    negative = samples < 0
    if law == "pcmu":
        magnitude = np.minimum(np.where(negative, ~samples, samples), _CLIP) + _BIAS
        segment = _bits(magnitude >> 8)
        codes = ~(np.where(negative, 0x80, 0) | segment << 4 | (magnitude >> segment + 3 & 0x0F))
    else:
        magnitude = np.where(negative, ~samples, samples) >> 3
        segment = _bits(magnitude >> 5)
        shifted = magnitude >> np.maximum(segment, 1)
        codes = (segment << 4 | (shifted & 0x0F) | np.where(negative, 0, 0x80)) ^ 0x55
    found: np.ndarray[Any, np.dtype[np.uint8]] = (codes & 0xFF).astype(np.uint8)
    return found


def _bits(numbers: "np.ndarray[Any, np.dtype[np.int32]]") -> "np.ndarray[Any, np.dtype[np.int32]]":
    """How many bits each takes, of at most seven."""
    import numpy as np

    found: np.ndarray[Any, np.dtype[np.int32]] = np.sum([numbers >> at > 0 for at in range(8)], axis=0, dtype=np.int32)
    return found
