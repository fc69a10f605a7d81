"""RMS norm, product and gate fused for one row: what a decode step of one sequence multiplies."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..activation import ActivationKind, gated_activation
from ..activation.gated import KINDS
from ..guards import describe, triton_unsupported_reason
from ..linear import linear
from ..norm import add_rms_norm, rms_norm
from ..repeated import Kept, Start
from ..variants import Choice, Variant, select_variant, wanted

__all__ = ["NormedProduct", "choose", "normed_linear"]

MAX_WIDTH = 8192
"""The longest row that the kernel holds beside the weight's rows."""
_CHOICES: Kept[Variant] = Kept()
_STARTS: Kept[Start] = Kept()


class NormedProduct(NamedTuple):
    product: Tensor
    """[T, N]; with a gate [T, N / 2]."""
    total: Tensor
    """[T, K]: the input of the norm."""


def choose(x: Tensor, weight: Tensor, kind: ActivationKind | None = None, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`normed_linear` runs.

    The Triton variant takes one row. It runs unasked if this GPU's tuning table has block sizes for the weight, which
    means that it was faster there than the separate operations.

    Raises:
        ValueError: a variant is asked for that cannot run.
    """
    if (chosen := _CHOICES.find((x, weight), kind, variant)) is not None:
        return chosen
    chosen = select_variant(variant, triton=_unsupported_reason(x, weight, kind, variant))
    return _CHOICES.keep(chosen, (x, weight), kind, variant)


def normed_linear(
    x: Tensor,
    norm: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    kind: ActivationKind | None = None,
    plus_one: bool = False,
    variant: Choice = "auto",
) -> NormedProduct:
    """Returns :func:`stentor.kernels.rms_norm` times a weight, or :func:`stentor.kernels.gated_activation` of that.

    Each step rounds to the dtype of ``x``, as the separate operations do.

    Args:
        x: [T, K], contiguous.
        norm: [K], contiguous; its ``eps`` and ``plus_one`` as for :func:`stentor.kernels.rms_norm`.
        weight: [N, K], contiguous; with a ``kind``, the gates first.
        residual: [T, K] or None: added to ``x`` first. It must not be read afterwards.
        bias: [N] or None.
        kind: the activation of the gate; None: no gate.
        variant: forces an implementation.

    Returns:
        New tensors; but without ``residual``, ``total`` is ``x``.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    given = (x, norm, weight, *[each for each in (residual, bias) if each is not None])
    numbers = (residual is None, bias is None, eps, kind, plus_one, variant)
    outputs = weight.shape[0] if kind is None else weight.shape[0] // 2
    if (start := _STARTS.find(given, *numbers)) is not None:
        out = NormedProduct(x.new_empty((1, outputs)), x if residual is None else torch.empty_like(x))
        start(x, residual, norm, weight, bias, out.product, None if residual is None else out.total)
        return out
    if x.dim() != 2 or weight.dim() != 2 or norm.shape != x.shape[1:] or weight.shape[1:] != x.shape[1:]:
        raise ValueError(
            f"normed_linear: x {describe(x)}, norm {describe(norm)} and weight {describe(weight)} do not fit; want "
            "[T, K], [K] and [N, K]"
        )
    if any(each.dtype != x.dtype or not each.is_contiguous() for each in given):
        raise ValueError(f"normed_linear: all must be contiguous and of the dtype of x {describe(x)}")
    for name, tensor, shape in (("residual", residual, x.shape), ("bias", bias, weight.shape[:1])):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"normed_linear: {name} {describe(tensor)} must be {tuple(shape)}")
    if kind is not None and (kind not in KINDS or weight.shape[0] % 2):
        raise ValueError(f"normed_linear: {kind!r} of {weight.shape[0]} outputs is no gate of {', '.join(KINDS)}")
    if choose(x, weight, kind, variant) == "triton":
        from .triton import prepare_row  # late: heavy

        out = NormedProduct(x.new_empty((1, outputs)), x if residual is None else torch.empty_like(x))
        start = prepare_row(x, residual, norm, weight, bias, out, eps, plus_one, kind)
        given_out = out.product, None if residual is None else out.total
        _STARTS.keep(start, given, *numbers)(x, residual, norm, weight, bias, *given_out)
        return out
    own: Choice = "reference" if wanted(variant) == "reference" else "auto"
    if residual is None:
        normed, total = rms_norm(x, norm, eps, plus_one=plus_one, variant=own), x
    else:
        normed, total = add_rms_norm(x, residual, norm, eps, plus_one=plus_one, variant=own), residual
    product = linear(normed, weight, bias, variant=own)
    return NormedProduct(product if kind is None else gated_activation(product, kind, variant=own), total)


def _unsupported_reason(x: Tensor, weight: Tensor, kind: ActivationKind | None, variant: Choice) -> str | None:
    if x.shape[0] != 1:
        return "it takes one row"
    if x.dtype not in (torch.bfloat16, torch.float16) or x.shape[1] > MAX_WIDTH:
        return f"it takes bfloat16 or float16, and rows of up to {MAX_WIDTH}"
    if (reason := triton_unsupported_reason(x, variant)) is not None or wanted(variant) == "triton":
        return reason
    from .triton import LIBRARY, config_of  # late: heavy

    return "no block sizes are known to beat the operations one by one" if config_of(weight, kind) == LIBRARY else None
