# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Waiting for Hopper's asynchronous warpgroup matrix products, so that they overlap with other work."""

import triton
import triton.language as tl


@triton.jit
def waited(sums, WAITS: tl.constexpr):
    """Returns ``sums``, the accumulator of products, after waiting for them, so that the loop's next iteration begins
    with it complete.

    Triton lets the last product of an iteration run on into the next. If that iteration computes an operand in
    registers meanwhile, the assembler takes it for the accumulator and serialises the products. This emits no
    instruction; it is a use of the accumulator, before which Triton waits.
    """
    if WAITS:
        return tl.inline_asm_elementwise("", "=r,0", [sums], dtype=sums.dtype, is_pure=True, pack=1)
    else:
        return sums
