"""Multiplication by a weight in fp8."""

import torch
from torch import Tensor

from ..guards import triton_unsupported_reason
from ..quantize import Quantized
from ..quantize.operands import Operands, operands
from ..quantize.scheme import FP8
from ..variants import Choice, Variant
from . import reference
from .selection import Selection, select

__all__ = ["choose", "linear_fp8", "run_triton", "selection_for"]


def selection_for(
    x: Quantized | Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    variant: Choice = "auto",
) -> Selection:
    """The implementation that :func:`linear_fp8` takes for these arguments, and why not those before it."""
    return _select(operands("linear_fp8", x, weight, weight_scale, bias, out_dtype, FP8), variant)


def choose(x: Quantized | Tensor, weight: Tensor, weight_scale: Tensor, variant: Choice = "auto") -> Variant:
    """``triton`` for all that runs on CUDA, torch's own kernel too. Raises ValueError where ``variant`` cannot run."""
    selected = selection_for(x, weight, weight_scale, out_dtype=torch.bfloat16, variant=variant)
    return "reference" if selected.implementation == "reference" else "triton"


def linear_fp8(
    x: Quantized | Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    variant: Choice = "auto",
) -> Tensor:
    """Multiplies by a weight in fp8, summing in float32.

    Args:
        x: activations [T, K]: quantised to ``float8_e4m3fn`` by tensor, token or groups of 128; or as they are,
            in float32, bfloat16 or float16 (the weight is then widened, exactly, to their dtype). Rows of the
            latter may be strided.
        weight: [N, K] ``float8_e4m3fn``, contiguous.
        weight_scale: float32 [1], [N], or one for each 128 x 128 [ceil(N / 128), ceil(K / 128)].
        bias: [N] floats, added in float32 before the one rounding (where torch's kernel runs and the bias is not
            bfloat16: after it).
        out_dtype: float32, bfloat16 or float16; that of ``x`` where it is not quantised.
        variant: ``triton`` forces our own kernels, ``reference`` plain torch.

    Returns:
        A new contiguous tensor [T, N].

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    given = operands("linear_fp8", x, weight, weight_scale, bias, out_dtype, FP8)
    selected = _select(given, variant)
    if selected.implementation == "reference":
        return reference.linear_fp8(given)
    return run_triton(given, selected)


def run_triton(given: Operands, selected: Selection) -> Tensor:
    """Runs the implementation that was selected, for a weight of either dtype; not the reference."""
    tokens, rows, _ = given.shape
    if not tokens:
        return torch.empty(0, rows, dtype=given.out_dtype, device=given.x.device)
    match selected.implementation:
        case "gemv":
            from .triton_gemv import gemv  # these late: importing Triton takes half a second

            return gemv(given)
        case "skinny":
            from .triton_skinny import skinny

            return skinny(given)
        case "scaled_mm":
            return scaled_mm(given)
        case _:
            from .triton_tiles import tiles

            return tiles(given)


def _select(given: Operands, variant: Choice) -> Selection:
    return select(given, variant, triton_unsupported_reason(given.x, variant))


def scaled_mm(operands: Operands) -> Tensor:
    """What :mod:`.selection` lets through: fp8 by fp8, scales by tensor or by token and channel."""
    tokens, rows, _ = operands.shape
    x_scale, weight_scale = operands.x_scale, operands.weight_scale
    assert x_scale is not None
    if (operands.input_scales, operands.weight_scales) != ("tensor", "tensor"):
        x_scale = x_scale.view(-1, 1).expand(tokens, 1).contiguous()
        weight_scale = weight_scale.view(1, -1).expand(1, rows).contiguous()
    bias = operands.bias
    # it adds a bias of the result's dtype, where that has 16 bits
    fused = bias if bias is not None and bias.dtype == operands.out_dtype == torch.bfloat16 else None
    out: Tensor = torch._scaled_mm(
        operands.x,
        operands.weight.t(),
        scale_a=x_scale,
        scale_b=weight_scale,
        bias=fused,
        out_dtype=operands.out_dtype,
        use_fast_accum=True,
    )
    return out if bias is None or fused is not None else out.add_(bias)
