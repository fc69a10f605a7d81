# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""What networks do between their products, in registers

gelu's tanh form is x · sigmoid(2u) with u = √(2/π) · (x + 0.044715 x³), since (1 + tanh u) / 2 = sigmoid(2u).
"""

import triton
import triton.language as tl


@triton.jit
def activated(x, KIND: tl.constexpr):
    """float32, of a kind that takes no gate."""
    if KIND == "silu":
        return x * tl.sigmoid(x)
    elif KIND == "gelu_tanh":
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "gelu":
        return x * (0.5 + 0.5 * tl.erf(x * 0.7071067811865476))
    elif KIND == "quick_gelu":
        return x * tl.sigmoid(1.702 * x)
    elif KIND == "relu":
        return tl.where(x < 0.0, 0.0, x)
    else:
        x = tl.where(x < 0.0, 0.0, x)
        return x * x


@triton.jit
def gated(gate, up, KIND: tl.constexpr):
    """float32, see :data:`stentor.kernels.ExpertActivation`."""
    if KIND != "swiglu_oai":
        return activated(gate, KIND) * up
    else:
        # a comparison with what is no number is false, and keeps it
        gate = tl.where(gate > 7.0, 7.0, gate)
        up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up))
        return gate * tl.sigmoid(1.702 * gate) * (up + 1.0)
