"""Convolutions over time, as products of neighbouring frames."""

from functools import partial

import torch

from stentor import kernels
from stentor.kernels.linear_packed import PLAIN, PackedWeight, empty_packed, linear_packed, pack_plain_

from ..linear.layer_context import LayerContext
from ..linear.weights import WeightMap, check_plain, check_shape


class Convolution:
    """A convolution of ``width`` frames every ``stride`` frames, with frames of zeros before and behind."""

    def __init__(
        self,
        weights: WeightMap,
        name: str,
        inputs: int,
        outputs: int,
        context: LayerContext,
        *,
        width: int = 3,
        stride: int = 1,
        pad: tuple[int, int] = (1, 1),
        bias: bool = True,
    ) -> None:
        """``pad``: frames of zeros before and behind."""
        self._inputs, self._outputs, self._width, self._stride = inputs, outputs, width, stride
        self._before, self._padding = pad[0], sum(pad)
        self._invariant = context.invariant
        self._bias = context.empty(outputs) if bias else None
        if self._bias is not None:
            weights.add(f"{name}.bias", self._bias)
        across = width * inputs
        self._packed = (
            empty_packed(outputs, across, PLAIN[context.dtype], device=context.place, take=context.take)
            if context.packed
            else None
        )
        self._weight = None if self._packed is not None else context.empty(outputs, across)
        if self._weight is not None:
            weights.add(f"{name}.weight", self._weight.view(outputs, width, inputs).transpose(1, 2))
        if self._packed is not None:
            place = partial(self._pack, f"{name}.weight", self._packed)
            weights.gather(name, ("weight",), place, nbytes=self._packed.nbytes)

    def _pack(self, name: str, packed: PackedWeight, stored: dict[str, torch.Tensor]) -> None:
        weight = stored["weight"]
        check_plain(name, weight)
        check_shape(name, weight, (self._outputs, self._inputs, self._width))
        pack_plain_(packed, 0, weight.transpose(1, 2).reshape(self._outputs, -1))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [windows, time, inputs] → [windows, ⌊(time + padding - width) / stride⌋ + 1, outputs]"""
        windows, time, _ = x.shape
        positions = (time + self._padding - self._width) // self._stride + 1
        strides = -(-(time + self._padding) // self._stride)  # of one window, with padding
        room = strides * self._stride
        padded = x.new_zeros(windows * room + self._width, self._inputs)
        padded[: windows * room].view(windows, room, -1)[:, self._before : self._before + time] = x
        count = windows * strides  # includes unused rows between windows
        rows = padded.as_strided((count, self._width * self._inputs), (self._stride * self._inputs, 1))
        if self._packed is not None:
            out = linear_packed(rows, self._packed, None if self._bias is None else self._bias.float())
        else:
            assert self._weight is not None
            out = kernels.linear(rows, self._weight, self._bias, invariant=self._invariant)
        return out.view(windows, strides, self._outputs)[:, :positions]
