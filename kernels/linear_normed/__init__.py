"""RMS norm, product and gate fused for up to 64 rows: what a decode step of few sequences multiplies.

One row is normed by each program of the product. More rows are normed tile by tile, for which a program has to know
their sums of squares. The product before writes them as it adds itself to the residual stream (:mod:`.added`).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..activation import ActivationKind, gated_activation
from ..activation.gated import KINDS
from ..guards import describe, triton_unsupported_reason
from ..launching.repeated import LaunchCache
from ..linear import linear
from ..linear_fp8.selection import SKINNY_TOKENS as MOST_ROWS
from ..norm import add_rms_norm, rms_norm
from ..variants import Choice, Variant, select_variant, wanted
from .added import add_linear_, choose_added

__all__ = ["MOST_ROWS", "NormedProduct", "add_linear_", "choose", "choose_added", "normed_linear"]

MAX_WIDTH = 8192
"""The longest row that the kernel of one row holds beside the weight's rows."""


class NormedProduct(NamedTuple):
    product: Tensor
    """[T, N]; with a gate [T, N / 2]."""
    total: Tensor
    """[T, K]: the input of the norm."""


class NormedInputs(NamedTuple):
    """The tensors of :func:`normed_linear`."""

    x: Tensor
    norm: Tensor
    weight: Tensor
    residual: Tensor | None
    squares: Tensor | None
    bias: Tensor | None


Prepared = Callable[[NormedInputs], NormedProduct]
_CHOICES: LaunchCache[Variant] = LaunchCache()
_PREPARED: LaunchCache[Prepared] = LaunchCache()


def choose(
    x: Tensor, weight: Tensor, kind: ActivationKind | None = None, variant: Choice = "auto", *, squared: bool = False
) -> Variant:
    """Returns the variant that :func:`normed_linear` runs; ``squared``: with the squares of ``x`` and no residual.

    The Triton variant takes one row, or up to 64 with their squares. It runs unasked if this GPU's tuning table has
    block sizes for the weight, which means that it was faster there than the separate operations.

    Raises:
        ValueError: a variant is asked for that cannot run.
    """
    key, chosen = _CHOICES.find((x, weight), kind, variant, squared)
    if chosen is not None:
        return chosen
    chosen = select_variant(variant, triton=_unsupported_reason(x, weight, kind, variant, squared))
    return _CHOICES.keep(key, chosen)


def normed_linear(
    x: Tensor,
    norm: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    squares: Tensor | None = None,
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
        squares: float32 [parts, T] as of :func:`add_linear_`, or None; only without ``residual``.
        bias: [N] or None.
        kind: the activation of the gate; None: no gate.
        variant: forces an implementation.

    Returns:
        New tensors; but without ``residual``, ``total`` is ``x``.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    inputs = NormedInputs(x, norm, weight, residual, squares, bias)
    given = tuple(each for each in inputs if each is not None)
    numbers = (residual is None, squares is None, bias is None, eps, kind, plus_one, variant)
    key, prepared = _PREPARED.find(given, *numbers)
    if prepared is not None:
        return prepared(inputs)
    if x.dim() != 2 or weight.dim() != 2 or norm.shape != x.shape[1:] or weight.shape[1:] != x.shape[1:]:
        raise ValueError(
            f"normed_linear: x {describe(x)}, norm {describe(norm)} and weight {describe(weight)} do not fit; want "
            "[T, K], [K] and [N, K]"
        )
    alike = [each for each in given if each is not squares]
    if any(each.dtype != x.dtype or not each.is_contiguous() for each in alike):
        raise ValueError(f"normed_linear: all must be contiguous and of the dtype of x {describe(x)}")
    for name, tensor, shape in (("residual", residual, x.shape), ("bias", bias, weight.shape[:1])):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"normed_linear: {name} {describe(tensor)} must be {tuple(shape)}")
    if squares is not None and (
        residual is not None
        or squares.dim() != 2
        or squares.shape[1:] != x.shape[:1]
        or squares.dtype != torch.float32
        or not squares.is_contiguous()
    ):
        raise ValueError(f"normed_linear: squares {describe(squares)} must be float32 [parts, T], without a residual")
    if kind is not None and (kind not in KINDS or weight.shape[0] % 2):
        raise ValueError(f"normed_linear: {kind!r} of {weight.shape[0]} outputs is no gate of {', '.join(KINDS)}")
    if choose(x, weight, kind, variant, squared=squares is not None) == "triton":
        from .triton_row import prepare_row  # these late: heavy
        from .triton_skinny import prepare_skinny

        prepare = prepare_row if x.shape[0] == 1 else prepare_skinny
        return _PREPARED.keep(key, prepare(inputs, eps, plus_one, kind))(inputs)
    own: Choice = "reference" if wanted(variant) == "reference" else "auto"
    if residual is None:
        normed, total = rms_norm(x, norm, eps, plus_one=plus_one, variant=own), x
    else:
        normed, total = add_rms_norm(x, residual, norm, eps, plus_one=plus_one, variant=own), residual
    product = linear(normed, weight, bias, variant=own)
    return NormedProduct(product if kind is None else gated_activation(product, kind, variant=own), total)


def _unsupported_reason(
    x: Tensor, weight: Tensor, kind: ActivationKind | None, variant: Choice, squared: bool
) -> str | None:
    rows, width = x.shape
    if rows != 1 and not (squared and 1 < rows <= MOST_ROWS):
        return f"it takes one row, or up to {MOST_ROWS} with their squares"
    if x.dtype not in (torch.bfloat16, torch.float16) or not x.is_contiguous():
        return "it takes contiguous bfloat16 or float16"
    if rows == 1 and width > MAX_WIDTH:
        return f"it takes one row of up to {MAX_WIDTH}"
    if (reason := triton_unsupported_reason(x, variant)) is not None or wanted(variant) == "triton":
        return reason
    from . import triton_row, triton_skinny  # late: heavy

    few = triton_row if rows == 1 else triton_skinny
    known = few.config_of(x, weight, kind) != few.LIBRARY
    return None if known else "no block sizes are known to beat the operations one by one"
