"""Blocks of GGUF's K types, which the gguf package reads and does not write; rounded to the nearest, no search.

The layouts are ggml's, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

import gguf
import numpy as np

Type = gguf.GGMLQuantizationType


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
        case _:
            quantized: np.ndarray = gguf.quants.quantize(values, kind)
            return quantized
    return blocks.reshape(len(values), -1)


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
