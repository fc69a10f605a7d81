"""xIELU (arXiv:2411.13010): quadratic above zero, an integrated exponential below, both with learned strengths."""

import torch
from torch.nn import functional

from stentor.kernels.forward import Traced

from .elementwise import elementwise
from .layer_context import LayerContext
from .quantized import Stream
from .weights import WeightMap

_BETA, _EPS = 0.5, -1e-6
"""The slope at zero, and the largest input below it; checkpoints store both beside what is learned."""


class XIELU:
    """p x² + x / 2 above zero, n (eˣ - 1 - x) + x / 2 below, where p and n - 1 / 2 are softplus of what is stored."""

    def __init__(self, weights: WeightMap, name: str, context: LayerContext) -> None:
        self._stored = tuple(context.empty(1, dtype=torch.float32) for _ in range(2))
        for which, target in zip(("alpha_p", "alpha_n"), self._stored, strict=True):
            weights.add(f"{name}.{which}", target)
        weights.pass_over(f"{name}.beta", f"{name}.eps")

    def __call__(self, x: Stream) -> Stream:
        """Elementwise. In a program it is called: it has no instruction."""
        if isinstance(x, Traced):
            return x.call("xIELU", lambda rows, _: self._apply(rows), x.width)
        return self._apply(x.float()).to(x.dtype)

    def _apply(self, x: torch.Tensor) -> torch.Tensor:
        above, below = (functional.softplus(stored) for stored in self._stored)
        negative = (elementwise(torch.expm1, x.clamp(max=_EPS)) - x) * (_BETA + below)
        return torch.where(x > 0, above * x * x, negative) + _BETA * x
