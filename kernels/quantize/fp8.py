# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""float8_e4m3fn in Triton: in hardware if the GPU has it, else in integers.

GPUs before compute capability 8.9 have no such type, and Triton's interpreter rounds to it wrongly. For these, tensors
are passed as bytes, and these functions read and write their bits: s eeee mmm, bias 7, largest 448 = s 1111 110, no
infinities, NaN = s 1111 111 (arXiv:2209.05433).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import interpreted


def capability() -> int:
    """Returns the compute capability of the GPU that launches go to, or a dry run's: 90 for Hopper; 0 under Triton's
    interpreter."""
    if interpreted():
        return 0
    arch: int = triton.runtime.driver.active.get_current_target().arch
    return arch


def as_kernel_argument(tensor: Tensor) -> Tensor:
    """Returns ``tensor``, or its bytes if it is fp8 that kernels must decode themselves."""
    if tensor.dtype == torch.float8_e4m3fn and capability() < 89:
        return tensor.view(torch.uint8)
    return tensor


@triton.jit
def round_to_fp8(x, OUT: tl.constexpr):
    """Converts ``x`` float32 within ±448, or NaN, to ``OUT``: float8e4nv, or uint8 that holds its bits."""
    if tl.float8e4nv == OUT:
        return x.to(tl.float8e4nv)
    else:
        bits = x.to(tl.int32, bitcast=True)
        sign = (bits >> 24) & 0x80
        magnitude = bits & 0x7FFFFFFF
        # a normal number: change the exponent's bias from 127 to 7 and round off 20 bits, half to even
        normal = (magnitude - (120 << 23) + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
        # below 2^-6: adding 2^14 leaves the multiples of 2^-9 in the lowest bits, rounded by the adder
        tiny = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        code = tl.where(magnitude < (121 << 23), tiny, normal)
        code = tl.where(magnitude > 0x7F800000, 0x7F, code)
        return (code | sign).to(tl.uint8)


@triton.jit
def _narrow(half, TO: tl.constexpr):
    if tl.bfloat16 == TO:
        # through float32: the GPU's direct conversion runs at an eighth of the speed
        return half.to(tl.float32).to(tl.bfloat16)
    else:
        return half.to(TO)


@triton.jit
def widen(x, TO: tl.constexpr):
    """Converts ``x`` exactly to float16, bfloat16 or float32, from float8e4nv, its bits as uint8, int8 or a wider
    float; to its own dtype it stays as it is.

    As bits, a NaN becomes 480.
    """
    if x.dtype == TO:
        return x
    elif x.dtype == tl.uint8:
        bits = x.to(tl.uint16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        # the exponent's bias is 15 there: 2^8 too little
        return _narrow(half.to(tl.float16, bitcast=True) * 256.0, TO)
    elif x.dtype == tl.float8e4nv:
        return _narrow(x.to(tl.float16), TO)
    elif x.dtype == tl.int8 and (tl.float32 == TO or tl.float16 == TO):
        # in the lowest bits of 2^23 + 128 + x: two additions in place of a slow conversion
        biased = (x.to(tl.int32) + 0x4B000080).to(tl.float32, bitcast=True)
        return (biased - 8388736.0).to(TO)
    else:
        return x.to(TO)
