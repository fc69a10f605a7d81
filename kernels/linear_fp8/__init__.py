"""Multiplication by a weight in fp8."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..guards import triton_unsupported_reason
from ..launching.repeated import LaunchCache
from ..quantize import Quantized
from ..quantize.operands import Operands, Product, operands
from ..quantize.scheme import FP8
from ..variants import Choice, Variant
from . import reference
from .selection import Selection, select

__all__ = ["choose", "linear_fp8", "multiply", "selection_for"]

_PRODUCTS: LaunchCache[Product] = LaunchCache()


def selection_for(
    x: Quantized | Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    variant: Choice = "auto",
) -> Selection:
    """Returns the implementation that :func:`linear_fp8` runs on these arguments, and why those before it were passed
    over."""
    return _select(operands("linear_fp8", x, weight, weight_scale, bias, out_dtype, FP8), variant)


def choose(x: Quantized | Tensor, weight: Tensor, weight_scale: Tensor, variant: Choice = "auto") -> Variant:
    """Returns ``triton`` for everything that runs on CUDA, including torch's own kernel. Raises ValueError if
    ``variant`` cannot run."""
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
    """Multiplies by an fp8 weight, summing in float32.

    Args:
        x: activations [T, K]: quantised to ``float8_e4m3fn`` by tensor, token or groups of 128, or plain float32,
            bfloat16 or float16 (the weight is then widened, exactly, to their dtype). Rows of plain ones may be
            strided.
        weight: [N, K] ``float8_e4m3fn``, contiguous.
        weight_scale: float32 [1], [N], or one for each 128 x 128 [ceil(N / 128), ceil(K / 128)].
        bias: [N] floats, added in float32 before the one rounding; after it if torch's kernel runs and the bias is not
            bfloat16.
        out_dtype: float32, bfloat16 or float16; that of ``x`` if it is not quantised.
        variant: ``triton`` forces our own kernels, ``reference`` plain torch.

    Returns:
        A new contiguous tensor [T, N].

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    return multiply("linear_fp8", FP8, reference.linear_fp8, x, weight, weight_scale, bias, out_dtype, variant)


def multiply(
    name: str,
    dtype: torch.dtype,
    reference: Callable[[Operands], Tensor],
    x: Quantized | Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    variant: Choice,
) -> Tensor:
    """Runs the operation ``name``, whose weight has ``dtype``."""
    values, x_scale = (x.values, x.scales) if isinstance(x, Quantized) else (x, None)
    given = [each for each in (values, weight, weight_scale, x_scale, bias) if each is not None]
    numbers = (name, x_scale is None, out_dtype, variant)
    key, product = _PRODUCTS.find(given, *numbers)
    if product is not None:
        return product(values, x_scale, weight, weight_scale, bias)
    made = operands(name, x, weight, weight_scale, bias, out_dtype, dtype)
    selected = _select(made, variant)
    if selected.implementation == "reference":
        return reference(made)
    if not made.x.shape[0]:
        return torch.empty(0, made.shape[1], dtype=made.out_dtype, device=made.x.device)
    return _PRODUCTS.keep(key, _prepare(made, selected))(*made.tensors)


def _prepare(operands: Operands, selected: Selection) -> Product:
    """Prepares the selected implementation, for a weight of either dtype; not the reference."""
    match selected.implementation:
        case "gemv":
            from .triton_gemv import prepare_gemv  # these late: importing Triton takes half a second

            return prepare_gemv(operands)
        case "skinny":
            from .triton_skinny import prepare_skinny

            return prepare_skinny(operands)
        case "scaled_mm":
            return _prepare_scaled_mm(operands)
        case _:
            from .triton_tiles import prepare_tiles

            return prepare_tiles(operands)


def _select(given: Operands, variant: Choice) -> Selection:
    return select(given, variant, triton_unsupported_reason(given.x, variant))


def _prepare_scaled_mm(operands: Operands) -> Product:
    """Prepares the cases that :mod:`.selection` allows: fp8 by fp8, scales by tensor or by token and channel."""
    tokens, rows, _ = operands.shape
    one_scale = (operands.input_scales, operands.weight_scales) == ("tensor", "tensor")
    bias, out_dtype = operands.bias, operands.out_dtype
    # it adds a bias of the result's dtype if that has 16 bits
    fused = bias is not None and bias.dtype == out_dtype == torch.bfloat16

    def scaled_mm(
        x: Tensor, x_scale: Tensor | None, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
    ) -> Tensor:
        assert x_scale is not None
        if not one_scale:
            x_scale = x_scale.view(-1, 1).expand(tokens, 1).contiguous()
            weight_scale = weight_scale.view(1, -1).expand(1, rows).contiguous()
        out: Tensor = torch._scaled_mm(
            x,
            weight.t(),
            scale_a=x_scale,
            scale_b=weight_scale,
            bias=bias if fused else None,
            out_dtype=out_dtype,
            use_fast_accum=True,
        )
        return out if bias is None or fused else out.add_(bias)

    return scaled_mm
