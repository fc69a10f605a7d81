"""The tensor types of GGUF files: numbers, block sizes, and which can be read."""

from enum import IntEnum
from typing import Final, Self


class GGMLType(IntEnum):
    """Type numbers of the file, with elements and bytes of a block."""

    elements: int
    block_bytes: int

    def __new__(cls, number: int, elements: int, block_bytes: int) -> Self:
        made = int.__new__(cls, number)
        made._value_ = number
        made.elements, made.block_bytes = elements, block_bytes
        return made

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 40
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18


FLOATS: Final = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})

READABLE: Final = FLOATS | {
    GGMLType.Q8_0,
    GGMLType.Q4_0,
    GGMLType.Q4_1,
    GGMLType.Q5_0,
    GGMLType.Q5_1,
    GGMLType.Q4_K,
    GGMLType.Q5_K,
    GGMLType.Q6_K,
    GGMLType.IQ4_NL,
    GGMLType.MXFP4,
    GGMLType.Q2_K,
    GGMLType.Q3_K,
    GGMLType.IQ4_XS,
    GGMLType.IQ3_S,
    GGMLType.IQ3_XXS,
    GGMLType.IQ2_S,
    GGMLType.IQ2_XS,
    GGMLType.IQ2_XXS,
    GGMLType.IQ1_M,
    GGMLType.IQ1_S,
    GGMLType.TQ2_0,
    GGMLType.TQ1_0,
}
"""Types whose values can be decoded."""


def row_bytes(kind: GGMLType, columns: int) -> int:
    """Bytes of one row of ``columns`` elements, which must be whole blocks."""
    return columns // kind.elements * kind.block_bytes
