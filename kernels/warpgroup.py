# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""What Hopper's warpgroup products need to run beside each other."""

import triton
import triton.language as tl


@triton.jit
def waited(sums, WAITS: tl.constexpr):
    """``sums`` of products, which the loop's next turn does not begin without.

    Triton lets the last product of a turn run on into the next. Where that makes an operand in registers meanwhile,
    the assembler takes it for what the products sum in, and has each one wait for the one before. This is no
    instruction, but a use of the sums, before which Triton waits.
    """
    if WAITS:
        return tl.inline_asm_elementwise("", "=r,0", [sums], dtype=sums.dtype, is_pure=True, pack=1)
    else:
        return sums
