# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Decodes the codes of a tile to operands of matrix multiplications, and loads their scales.

A packed 32-bit register holds the words of two places. Shifted by 4j and masked it holds the two codes of column group
j. Under the exponent of 128 (bfloat16) or 1024 (float16) those bits *are* the numbers 128 + code and 1024 + code, and
one packed operation subtracts the constant and the offset. All of it is exact, because codes and offsets are small
integers.
"""

import triton
import triton.language as tl

UNPACK_4_BF16 = tl.constexpr(
    """{
    .reg .b32 t, one;
    mov.b32 one, 0x3f803f80;
    lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $4, 4;
    lop3.b32 $1, t, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $4, 8;
    lop3.b32 $2, t, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $4, 12;
    lop3.b32 $3, t, 0x000f000f, 0x43004300, 0xea;
    fma.rn.bf16x2 $0, $0, one, $5;
    fma.rn.bf16x2 $1, $1, one, $6;
    fma.rn.bf16x2 $2, $2, one, $7;
    fma.rn.bf16x2 $3, $3, one, $8;
    }"""
)
UNPACK_4_FP16 = tl.constexpr(
    """{
    .reg .b32 t;
    lop3.b32 $0, $4, 0x000f000f, 0x64006400, 0xea;
    shr.u32 t, $4, 4;
    lop3.b32 $1, t, 0x000f000f, 0x64006400, 0xea;
    shr.u32 t, $4, 8;
    lop3.b32 $2, t, 0x000f000f, 0x64006400, 0xea;
    shr.u32 t, $4, 12;
    lop3.b32 $3, t, 0x000f000f, 0x64006400, 0xea;
    add.f16x2 $0, $0, $5;
    add.f16x2 $1, $1, $6;
    add.f16x2 $2, $2, $7;
    add.f16x2 $3, $3, $8;
    }"""
)
# The upper two bits come from a second register, shifted to bits 4 and 5. Bits that a shift carries from one half into
# the other stay outside the mask.
UNPACK_6_BF16 = tl.constexpr(
    """{
    .reg .b32 t, one, off;
    mov.b32 one, 0x3f803f80;
    mov.b32 off, 0xc320c320;
    lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
    shl.b32 t, $5, 4;
    lop3.b32 $0, t, 0x00300030, $0, 0xea;
    shr.u32 t, $4, 4;
    lop3.b32 $1, t, 0x000f000f, 0x43004300, 0xea;
    shl.b32 t, $5, 2;
    lop3.b32 $1, t, 0x00300030, $1, 0xea;
    shr.u32 t, $4, 8;
    lop3.b32 $2, t, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 $2, $5, 0x00300030, $2, 0xea;
    shr.u32 t, $4, 12;
    lop3.b32 $3, t, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $5, 2;
    lop3.b32 $3, t, 0x00300030, $3, 0xea;
    fma.rn.bf16x2 $0, $0, one, off;
    fma.rn.bf16x2 $1, $1, one, off;
    fma.rn.bf16x2 $2, $2, one, off;
    fma.rn.bf16x2 $3, $3, one, off;
    }"""
)
UNPACK_6_FP16 = tl.constexpr(
    """{
    .reg .b32 t, off;
    mov.b32 off, 0xe420e420;
    lop3.b32 $0, $4, 0x000f000f, 0x64006400, 0xea;
    shl.b32 t, $5, 4;
    lop3.b32 $0, t, 0x00300030, $0, 0xea;
    shr.u32 t, $4, 4;
    lop3.b32 $1, t, 0x000f000f, 0x64006400, 0xea;
    shl.b32 t, $5, 2;
    lop3.b32 $1, t, 0x00300030, $1, 0xea;
    shr.u32 t, $4, 8;
    lop3.b32 $2, t, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 $2, $5, 0x00300030, $2, 0xea;
    shr.u32 t, $4, 12;
    lop3.b32 $3, t, 0x000f000f, 0x64006400, 0xea;
    shr.u32 t, $5, 2;
    lop3.b32 $3, t, 0x00300030, $3, 0xea;
    add.f16x2 $0, $0, off;
    add.f16x2 $1, $1, off;
    add.f16x2 $2, $2, off;
    add.f16x2 $3, $3, off;
    }"""
)


@triton.jit
def four_bits(words, z0, z1, z2, z3, DTYPE: tl.constexpr, FAST: tl.constexpr):
    """Returns code - zero of the four column groups of int16 ``words``; zeros may have any dtype and broadcast."""
    z0, z1, z2, z3 = z0.to(tl.float32), z1.to(tl.float32), z2.to(tl.float32), z3.to(tl.float32)
    if FAST:
        BASE: tl.constexpr = 128 if DTYPE == tl.bfloat16 else 1024  # noqa: SIM300
        n0 = tl.broadcast_to((-BASE - z0).to(DTYPE), words.shape)
        n1 = tl.broadcast_to((-BASE - z1).to(DTYPE), words.shape)
        n2 = tl.broadcast_to((-BASE - z2).to(DTYPE), words.shape)
        n3 = tl.broadcast_to((-BASE - z3).to(DTYPE), words.shape)
        if DTYPE == tl.bfloat16:  # noqa: SIM300
            return tl.inline_asm_elementwise(
                UNPACK_4_BF16,
                "=&r,=&r,=&r,=&r,r,r,r,r,r",
                [words, n0, n1, n2, n3],
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=2,
            )
        else:
            return tl.inline_asm_elementwise(
                UNPACK_4_FP16,
                "=&r,=&r,=&r,=&r,r,r,r,r,r",
                [words, n0, n1, n2, n3],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
                is_pure=True,
                pack=2,
            )
    wide = words.to(tl.int32)
    q0 = (wide & 15).to(tl.float32) - z0
    q1 = ((wide >> 4) & 15).to(tl.float32) - z1
    q2 = ((wide >> 8) & 15).to(tl.float32) - z2
    q3 = ((wide >> 12) & 15).to(tl.float32) - z3
    return q0.to(DTYPE), q1.to(DTYPE), q2.to(DTYPE), q3.to(DTYPE)


@triton.jit
def six_bits(words, high, DTYPE: tl.constexpr, FAST: tl.constexpr):
    """Returns code - 32 of the four column groups, from int16 ``words`` and the uint8 of their upper bits."""
    if FAST:
        if DTYPE == tl.bfloat16:  # noqa: SIM300
            return tl.inline_asm_elementwise(
                UNPACK_6_BF16,
                "=&r,=&r,=&r,=&r,r,r",
                [words, high.to(tl.int16)],
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
                is_pure=True,
                pack=2,
            )
        else:
            return tl.inline_asm_elementwise(
                UNPACK_6_FP16,
                "=&r,=&r,=&r,=&r,r,r",
                [words, high.to(tl.int16)],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
                is_pure=True,
                pack=2,
            )
    wide = words.to(tl.int32)
    top = high.to(tl.int32)
    q0 = (wide & 15) + ((top & 3) << 4) - 32
    q1 = ((wide >> 4) & 15) + (((top >> 2) & 3) << 4) - 32
    q2 = ((wide >> 8) & 15) + (((top >> 4) & 3) << 4) - 32
    q3 = ((wide >> 12) & 15) + (((top >> 6) & 3) << 4) - 32
    return q0.to(DTYPE), q1.to(DTYPE), q2.to(DTYPE), q3.to(DTYPE)


@triton.jit
def eight_bits(codes):
    """Converts int8 to float32 through the bits of 2²³ + 128 + code, which is cheaper than an integer conversion."""
    bits = ((codes.to(tl.int32) & 0xFF) ^ 0x80) | 0x4B000000
    return bits.to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def factor(plane, sub_plane, block, half, LANE: tl.constexpr, n, N, mask, GROUP: tl.constexpr, SUB: tl.constexpr):
    """Loads the scale or minimum of rows ``n`` in the group of column group ``LANE`` (0…3) of a block.

    With groups of 16 columns it is that of the first or the second half of the column group. With a sub-plane, its byte
    is multiplied by the float of 256 columns in float32. Otherwise the value keeps its stored dtype: if the caller
    widens it last, the compiler may multiply in the narrow dtype where that gives the same.
    """
    if GROUP == 0:
        group = block * 0
    elif GROUP == 16:
        group = block * 8 + LANE * 2 + half
    else:
        group = block * (128 // GROUP) + LANE * 32 // GROUP
    if SUB:
        wide = tl.load(plane + block // 2 * N + n, mask=mask, other=0.0).to(tl.float32)
        return wide * tl.load(sub_plane + group * N + n, mask=mask, other=0).to(tl.float32)
    else:
        return tl.load(plane + group * N + n, mask=mask, other=0)


@triton.jit
def factors(plane, sub_plane, block, half, n, N, mask, GROUP: tl.constexpr, SUB: tl.constexpr):
    """Loads :func:`factor` of the four column groups; those in one group are one load."""
    f0 = factor(plane, sub_plane, block, half, 0, n, N, mask, GROUP, SUB)
    if GROUP == 0 or GROUP >= 128:
        return f0, f0, f0, f0
    f2 = factor(plane, sub_plane, block, half, 2, n, N, mask, GROUP, SUB)
    if GROUP == 64:
        return f0, f0, f2, f2
    f1 = factor(plane, sub_plane, block, half, 1, n, N, mask, GROUP, SUB)
    f3 = factor(plane, sub_plane, block, half, 3, n, N, mask, GROUP, SUB)
    return f0, f1, f2, f3
