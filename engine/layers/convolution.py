"""Convolutions along time, as products: the rows that a kernel covers lie side by side already."""

import torch

from stentor import kernels
from stentor.kernels.linear_packed import PLAIN, empty_packed, linear_packed, pack_plain_

from .layer_context import LayerContext
from .weights import WeightMap, check_plain, check_shape


class Convolution:
    """A convolution of three steps with one step of zeros before and after, and a bias."""

    WIDTH = 3

    def __init__(
        self, weights: WeightMap, name: str, inputs: int, outputs: int, context: LayerContext, *, stride: int = 1
    ) -> None:
        self._inputs, self._outputs, self._stride = inputs, outputs, stride
        self._invariant = context.invariant
        self._bias = context.empty(outputs)
        weights.add(f"{name}.bias", self._bias)
        width = self.WIDTH * inputs
        self._packed = (
            empty_packed(outputs, width, PLAIN[context.dtype], device=context.packed_device, take=context.take)
            if context.packed
            else None
        )
        self._weight = None if self._packed is not None else context.empty(outputs, width)

        def place(stored: dict[str, torch.Tensor]) -> None:
            weight = stored["weight"]
            check_plain(f"{name}.weight", weight)
            check_shape(f"{name}.weight", weight, (outputs, inputs, self.WIDTH))
            flat = weight.transpose(1, 2).reshape(outputs, width)
            if self._packed is not None:
                pack_plain_(self._packed, 0, flat)
            elif self._weight is not None:
                self._weight.copy_(flat)

        target = self._packed if self._packed is not None else self._weight
        assert target is not None
        weights.gather(name, ("weight",), place, nbytes=target.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [windows, time, inputs] → [windows, ⌈time / stride⌉, outputs]; time is a multiple of the stride."""
        windows, time, _ = x.shape
        room = time + 2 * self._stride  # before and after, in whole strides
        padded = x.new_zeros(windows * room + self.WIDTH, self._inputs)
        padded[: windows * room].view(windows, room, -1)[:, 1 : time + 1] = x
        count = windows * room // self._stride  # some rows of each window are nobody's
        rows = padded.as_strided((count, self.WIDTH * self._inputs), (self._stride * self._inputs, 1))
        if self._packed is not None:
            out = linear_packed(rows, self._packed, self._bias.float())
        else:
            assert self._weight is not None
            out = kernels.linear(rows, self._weight, self._bias, invariant=self._invariant)
        return out.view(windows, -1, self._outputs)[:, : time // self._stride]
