"""RMSNorm (arXiv:1910.07467), its fusion with the residual stream, and with the quantisation of what comes next;
LayerNorm (arXiv:1607.06450)."""

import torch

from stentor import kernels

from .layer_context import LayerContext
from .linear import Linear
from .quantized import Input
from .weights import WeightMap


class RMSNorm:
    """x / rms(x) * weight, or * (1 + weight) with ``plus_one``.

    ``before`` is the layer that takes the result: what it wants quantised is quantised here, in the same pass.
    """

    def __init__(
        self,
        weights: WeightMap,
        name: str,
        size: int,
        eps: float,
        context: LayerContext,
        *,
        plus_one: bool = False,
        before: Linear | None = None,
    ) -> None:
        self.weight = context.empty(size)
        self._eps = eps
        self._plus_one = plus_one
        self._scheme = before.input_scheme if before else None
        self._scale = before.input_scale if before else None
        weights.add(f"{name}.weight", self.weight)

    @property
    def factors(self) -> torch.Tensor:
        """What a program multiplies by, float32 [size]."""
        return self.weight.float() + 1 if self._plus_one else self.weight.float()

    @property
    def eps(self) -> float:
        return self._eps

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        """Over the last dimension of x, not quantised."""
        return kernels.rms_norm(x, self.weight, self._eps, plus_one=self._plus_one)

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """As :meth:`plain`, in float32, of whatever dtype ``x`` is."""
        return kernels.rms_norm(x.float(), self.factors, self._eps)

    def __call__(self, x: torch.Tensor) -> Input:
        """x [tokens, size] as the next layer takes it."""
        if self._scheme is None:
            return self.plain(x)
        return kernels.rms_norm_quantized(x, self.weight, self._eps, self._scheme, self._scale, plus_one=self._plus_one)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> Input:
        """Adds x [tokens, size] to ``residual`` in place and normalises the sum."""
        if self._scheme is None:
            return kernels.add_rms_norm(x, residual, self.weight, self._eps, plus_one=self._plus_one)
        return kernels.add_rms_norm_quantized(
            x, residual, self.weight, self._eps, self._scheme, self._scale, plus_one=self._plus_one
        )


class LayerNorm:
    """(x - mean) / deviation * weight + bias."""

    def __init__(
        self,
        weights: WeightMap,
        name: str,
        size: int,
        eps: float,
        context: LayerContext,
        *,
        dtype: torch.dtype | None = None,
        bias: bool = True,
    ) -> None:
        """``dtype`` is what it norms, the context's unless another is named. Without ``bias`` it is zero."""
        self._weight, self._bias = context.empty(size, dtype=dtype), context.empty(size, dtype=dtype)
        self._eps = eps
        weights.add(f"{name}.weight", self._weight)
        if bias:
            weights.add(f"{name}.bias", self._bias)
        elif not context.filled:
            self._bias.zero_()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Over the last dimension of x."""
        return kernels.layer_norm(x, self._weight, self._bias, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Adds x to ``residual`` in place and normalises the sum."""
        return kernels.add_layer_norm(x, residual, self._weight, self._bias, self._eps)
