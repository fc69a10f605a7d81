"""Blocks of GGUF types that the gguf package reads and does not write: K types rounded to the nearest, no search, and
others of random codes.

The layouts are ggml's, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

import gguf
import numpy as np

Type = gguf.GGMLQuantizationType

FACTORS: dict[Type, tuple[int, ...]] = {
    Type.Q8_0: (0,),
    Type.Q4_0: (0,),
    Type.Q4_1: (0, 2),
    Type.Q5_0: (0,),
    Type.Q5_1: (0, 2),
    Type.Q2_K: (80, 82),
    Type.Q3_K: (108,),
    Type.Q4_K: (0, 2),
    Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
    Type.IQ4_NL: (0,),
    Type.IQ4_XS: (0,),
    Type.IQ3_S: (0,),
    Type.IQ3_XXS: (0,),
    Type.IQ2_S: (0,),
    Type.IQ2_XS: (0,),
    Type.IQ2_XXS: (0,),
    Type.IQ1_S: (0,),
    Type.IQ1_M: (),
    Type.TQ1_0: (52,),
    Type.TQ2_0: (64,),
    Type.MXFP4: (),
}
"""Byte offsets of the half-precision factors in a block of each type."""
RANDOM = (
    Type.Q2_K,
    Type.Q3_K,
    Type.IQ4_XS,
    Type.IQ3_S,
    Type.IQ3_XXS,
    Type.IQ2_S,
    Type.IQ2_XS,
    Type.IQ2_XXS,
    Type.IQ1_S,
    Type.IQ1_M,
)
"""Types that :func:`quantize` gives random codes."""


def random_blocks(kind: Type, factors: np.ndarray) -> np.ndarray:
    """Random bytes, uint8 [blocks, bytes of a block], with factors float [blocks]."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = np.random.default_rng(int(kind)).integers(0, 256, (len(factors), size), dtype=np.uint8)
    halves = factors.astype(np.float16)
    for start in FACTORS[kind]:
        raw[:, start : start + 2] = halves.view(np.uint8).reshape(-1, 2)
    if kind == Type.IQ1_M:  # four bits at the top of each word of scales
        words = raw[:, 48:].copy().view("<u2")
        pieces = halves.view(np.uint16)[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15
        raw[:, 48:] = (words & 0x0FFF | pieces << 12).view(np.uint8)
    return raw


def quantize(values: np.ndarray, kind: Type) -> np.ndarray:
    """float32 [rows, columns] → uint8 [rows, bytes of a row]."""
    match kind:
        case Type.Q4_K:
            blocks = _k(values.reshape(-1, 8, 32), 15)
        case Type.Q5_K:
            blocks = _k(values.reshape(-1, 8, 32), 31)
        case Type.IQ4_NL:
            blocks = _iq4_nl(values.reshape(-1, 32))
        case Type.Q6_K:
            blocks = _q6_k(values.reshape(-1, 16, 16))
        case _ if kind in RANDOM:
            blocks = _of_spread(kind, values)
        case _:
            quantized: np.ndarray = gguf.quants.quantize(values, kind)
            return quantized
    return blocks.reshape(len(values), -1)


def _of_spread(kind: Type, values: np.ndarray) -> np.ndarray:
    """Random blocks whose values spread about as ``values`` do."""
    count = values.size // gguf.GGML_QUANT_SIZES[kind][0]
    spread = gguf.quants.dequantize(random_blocks(kind, np.ones(count)), kind).std()
    return random_blocks(kind, np.random.default_rng(0).uniform(0.5, 1.5, count) * values.std() / spread)


def _k(x: np.ndarray, most: int) -> np.ndarray:
    """[blocks, 8, 32] → uint8: d, dmin, 12 bytes of scales and mins of six bits, 32 of fifth bits where ``most`` is 31,
    128 of the lower four."""
    least = np.minimum(x.min(2), 0)
    step = (x.max(2) - least) / most
    d, d_scaled = _shared(step, 63)
    m, m_scaled = _shared(-least, 63)
    scale = d.astype(np.float32) * d_scaled
    codes = _codes(x + (m.astype(np.float32) * m_scaled)[:, :, None], scale, 0, most)
    packed = np.zeros((len(x), 12), np.uint8)
    packed[:, :4] = d_scaled[:, :4] | d_scaled[:, 4:] >> 4 << 6
    packed[:, 4:8] = m_scaled[:, :4] | m_scaled[:, 4:] >> 4 << 6
    packed[:, 8:] = d_scaled[:, 4:] & 15 | (m_scaled[:, 4:] & 15) << 4
    high = np.bitwise_or.reduce((codes >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    pairs = codes[:, 0::2] & 15 | (codes[:, 1::2] & 15) << 4
    fifth = [high] if most == 31 else []
    return np.concatenate([d.view(np.uint8), m.view(np.uint8), packed, *fifth, pairs.reshape(-1, 128)], axis=1)


def _iq4_nl(x: np.ndarray) -> np.ndarray:
    """[blocks, 32] → uint8 [blocks, 18]: d, 16 bytes of codes."""
    d = (np.abs(x).max(1, keepdims=True) / 127).astype(np.float16)
    table = np.array(gguf.quants.IQ4_NL.kvalues, np.float32)
    codes = np.abs(x[:, :, None] - d.astype(np.float32)[:, :, None] * table).argmin(2).astype(np.uint8)
    return np.concatenate([d.view(np.uint8), codes[:, :16] | codes[:, 16:] << 4], axis=1)


def _q6_k(x: np.ndarray) -> np.ndarray:
    """[blocks, 16, 16] → uint8 [blocks, 210]: low nibbles, upper pairs of bits, scales of eight bits, d."""
    d, scaled = _shared(np.abs(x).max(2) / 31, 127)
    codes = _codes(x, d.astype(np.float32) * scaled, -32, 31) + 32
    quarters = codes.astype(np.uint8).reshape(-1, 2, 4, 32)  # [blocks, halves, quarters, 32]
    low = quarters[:, :, :2] & 15 | (quarters[:, :, 2:] & 15) << 4
    high = np.zeros((len(x), 2, 32), np.uint8)
    for quarter in range(4):
        high |= quarters[:, :, quarter] >> 4 << 2 * quarter
    parts = [low.reshape(-1, 128), high.reshape(-1, 64), scaled.astype(np.uint8), d.view(np.uint8)]
    return np.concatenate(parts, axis=1)


def _shared(each: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors [blocks, n] as a common half-precision one [blocks, 1] and integers up to ``most``."""
    common = (each.max(1, keepdims=True) / most).astype(np.float16)
    wide = common.astype(np.float32)
    scaled = np.divide(each, wide, out=np.zeros_like(each), where=wide > 0)
    return common, np.clip(np.round(scaled), 0, most).astype(np.uint8)


def _codes(x: np.ndarray, scale: np.ndarray, least: int, most: int) -> np.ndarray:
    wide = scale[:, :, None]
    codes = np.divide(x, wide, out=np.zeros_like(x), where=wide > 0)
    rounded: np.ndarray = np.clip(np.round(codes), least, most).astype(np.int8 if least else np.uint8)
    return rounded
