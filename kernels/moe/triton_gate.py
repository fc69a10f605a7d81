# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""What experts do between their products, in registers."""

import triton
import triton.language as tl


@triton.jit
def gated(gate, up, KIND: tl.constexpr):
    """float32, see :data:`.checks.ExpertActivation`."""
    if KIND == "silu":
        return gate * tl.sigmoid(gate) * up
    elif KIND == "gelu_tanh":
        return gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
    elif KIND == "gelu":
        return gate * (0.5 + 0.5 * tl.erf(gate * 0.7071067811865476)) * up
    elif KIND == "relu2":
        gate = tl.where(gate < 0.0, 0.0, gate)
        return gate * gate * up
    else:
        # a comparison with what is no number is false, and keeps it
        gate = tl.where(gate > 7.0, 7.0, gate)
        up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up))
        return gate * tl.sigmoid(1.702 * gate) * (up + 1.0)
