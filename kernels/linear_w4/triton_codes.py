# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Decodes the codes of a tile to operands of matrix multiplications, and loads their scales.

A packed 32-bit register holds the words of two places. Shifted by 4j and masked it holds the two codes of column group
j. Under the exponent of 128 (bfloat16) or 1024 (float16) those bits *are* the numbers 128 + code and 1024 + code, and
one packed operation subtracts the constant and the offset. All of it is exact, because codes and offsets are small
integers.
"""

import triton
import triton.language as tl

_MASK_4 = """
    lop3.b32 $0, $4, 0x000f000f, BASE, 0xea;
    shr.u32 t, $4, 4;
    lop3.b32 $1, t, 0x000f000f, BASE, 0xea;
    shr.u32 t, $4, 8;
    lop3.b32 $2, t, 0x000f000f, BASE, 0xea;
    shr.u32 t, $4, 12;
    lop3.b32 $3, t, 0x000f000f, BASE, 0xea;"""
# The upper two bits come from a second register, shifted to bits 4 and 5. Bits that a shift carries from one half into
# the other stay outside the mask.
_MASK_6 = """
    lop3.b32 $0, $4, 0x000f000f, BASE, 0xea;
    shl.b32 t, $5, 4;
    lop3.b32 $0, t, 0x00300030, $0, 0xea;
    shr.u32 t, $4, 4;
    lop3.b32 $1, t, 0x000f000f, BASE, 0xea;
    shl.b32 t, $5, 2;
    lop3.b32 $1, t, 0x00300030, $1, 0xea;
    shr.u32 t, $4, 8;
    lop3.b32 $2, t, 0x000f000f, BASE, 0xea;
    lop3.b32 $2, $5, 0x00300030, $2, 0xea;
    shr.u32 t, $4, 12;
    lop3.b32 $3, t, 0x000f000f, BASE, 0xea;
    shr.u32 t, $5, 2;
    lop3.b32 $3, t, 0x00300030, $3, 0xea;"""
_BASE_BF16, _BASE_FP16 = "0x43004300", "0x64006400"


def _assembly(mask: str, base: str, add: str = "", offsets: tuple[str, ...] = (), registers: str = "") -> str:
    """Returns the instructions of ``mask``, and then ``add`` of each result and its offset."""
    lines = [add.format(f"${place}", offset) for place, offset in enumerate(offsets)]
    return "\n    ".join(["{", ".reg .b32 t;", registers, mask.replace("BASE", base), *lines]) + "\n}"


_ONE, _ADD_BF16 = ".reg .b32 one;\n    mov.b32 one, 0x3f803f80;", "fma.rn.bf16x2 {0}, {0}, one, {1};"
_ADD_FP16 = "add.f16x2 {0}, {0}, {1};"
_OFFSET = ".reg .b32 off;\n    mov.b32 off, {};"
_ZEROS, _FIXED = ("$5", "$6", "$7", "$8"), ("off",) * 4
UNPACK_4_BF16 = tl.constexpr(_assembly(_MASK_4, _BASE_BF16, _ADD_BF16, _ZEROS, _ONE))
UNPACK_4_FP16 = tl.constexpr(_assembly(_MASK_4, _BASE_FP16, _ADD_FP16, _ZEROS))
UNPACK_6_BF16 = tl.constexpr(
    _assembly(_MASK_6, _BASE_BF16, _ADD_BF16, _FIXED, _ONE + "\n    " + _OFFSET.format("0xc320c320"))
)
UNPACK_6_FP16 = tl.constexpr(_assembly(_MASK_6, _BASE_FP16, _ADD_FP16, _FIXED, _OFFSET.format("0xe420e420")))
MASK_4_BF16 = tl.constexpr(_assembly(_MASK_4, _BASE_BF16))


@triton.jit
def four_bits_above_128(words, DTYPE: tl.constexpr, FAST: tl.constexpr):
    """Returns code + 128 of the four column groups of int16 ``words``. FAST: DTYPE is bfloat16."""
    if FAST:
        return tl.inline_asm_elementwise(
            MASK_4_BF16,
            "=&r,=&r,=&r,=&r,r",
            [words],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    wide = words.to(tl.int32)
    q0, q1 = (wide & 15) + 128, ((wide >> 4) & 15) + 128
    q2, q3 = ((wide >> 8) & 15) + 128, ((wide >> 12) & 15) + 128
    return q0.to(DTYPE), q1.to(DTYPE), q2.to(DTYPE), q3.to(DTYPE)


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
    bits = (codes.to(tl.int32) & 0xFF) ^ 0x4B000080
    return bits.to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def _factor(plane, block, half, LANE: tl.constexpr, n, N, mask, GROUP: tl.constexpr):
    """Loads the scale or minimum of rows ``n`` in the group of column group ``LANE`` (0…3) of a block.

    With groups of 16 columns it is that of the first or the second half of the column group. The value keeps its stored
    dtype: if the caller widens it last, the compiler may multiply in the narrow dtype where that gives the same.
    """
    if GROUP == 0:
        group = block * 0
    elif GROUP == 16:
        group = block * 8 + LANE * 2 + half
    else:
        group = block * (128 // GROUP) + LANE * 32 // GROUP
    return tl.load(plane + group * N + n, mask=mask, other=0)


@triton.jit
def load_factors(plane, sub_plane, block, half, n, N, mask, GROUP: tl.constexpr, SUB: tl.constexpr):
    """Loads what :func:`expand_factors` makes the four column groups' scales or minima of, four values.

    With ``sub_plane``, int32 [blocks, N, words] of four bytes each, these are the float of 256 columns and a word.
    Otherwise they are the factors; those in one group are one load.
    """
    if SUB:
        WORDS: tl.constexpr = 2 if GROUP == 16 else 1
        wide = tl.load(plane + block // 2 * N + n, mask=mask, other=0.0)
        word = tl.load(sub_plane + (block * N + n) * WORDS + half, mask=mask, other=0)
        f0, f1, f2, f3 = wide, word, wide, word
    else:
        f0 = _factor(plane, block, half, 0, n, N, mask, GROUP)
        f1, f2, f3 = f0, f0, f0
        if GROUP == 16 or GROUP == 32:
            f1 = _factor(plane, block, half, 1, n, N, mask, GROUP)
        if GROUP == 16 or GROUP == 32 or GROUP == 64:
            f2 = _factor(plane, block, half, 2, n, N, mask, GROUP)
            f3 = f2
        if GROUP == 16 or GROUP == 32:
            f3 = _factor(plane, block, half, 3, n, N, mask, GROUP)
    return f0, f1, f2, f3


@triton.jit
def expand_factors(f0, f1, f2, f3, GROUP: tl.constexpr, SUB: tl.constexpr):
    """Returns the factors of the four column groups from what was loaded: with SUB the float of 256 columns times each
    byte of the word, in float32."""
    if SUB:
        wide = f0.to(tl.float32)
        f0, f2 = _byte(f1, 0, GROUP) * wide, _byte(f1, 2, GROUP) * wide
        return f0, _byte(f1, 1, GROUP) * wide, f2, _byte(f1, 3, GROUP) * wide
    else:
        return f0, f1, f2, f3


@triton.jit
def _byte(word, PLACE: tl.constexpr, GROUP: tl.constexpr):
    """Returns a byte of ``word`` as float32; it has a sign in groups of 16."""
    if GROUP == 16:
        return ((word << (24 - 8 * PLACE)) >> 24).to(tl.float32)
    else:
        return ((word >> (8 * PLACE)) & 0xFF).to(tl.float32)


@triton.jit
def factors(plane, sub_plane, block, half, n, N, mask, GROUP: tl.constexpr, SUB: tl.constexpr):
    """Loads and expands the scales or minima of the four column groups."""
    f0, f1, f2, f3 = load_factors(plane, sub_plane, block, half, n, N, mask, GROUP, SUB)
    return expand_factors(f0, f1, f2, f3, GROUP, SUB)
