"""Linear layers with weights as a checkpoint stores them, multiplied by the kernel of their format.

Each has several parts, fused along the outputs. A part's tensors are gathered while the checkpoint is read and
converted at once into their slice, so that at most one part exists twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Generic, TypeVar

import torch

from stentor import kernels
from stentor.kernels import ActivationScheme, CodedMatrices, GGUFWeight, Quantized, W4Weight
from stentor.kernels.forward import Traced
from stentor.kernels.linear_coded.blocks import coded_blocks, empty_blocks
from stentor.kernels.linear_gguf import FORMATS as GGUF_FORMATS
from stentor.kernels.linear_gguf import Kind
from stentor.kernels.linear_gguf import empty_weight as empty_gguf
from stentor.kernels.linear_w4 import empty_weight as empty_w4

from ...quantization.formats import FP8Format, GGUFFormat, Int4Format, Int8Format, OnlineFormat
from ...quantization.stored import endings, largest_input_scale, pack_int4, read_scaled
from .coded import block_kind
from .layer_context import LinearParts
from .weights import Place, WeightError, check_shape

Stream = torch.Tensor | Traced
"""The residual stream or a layer's values: [tokens, columns], or a placeholder while a pass is recorded."""


def changed(x: Stream, what: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Stream:
    """Apply ``change``, which may work in place, to x [tokens, columns]; returns as many columns. In a program the call
    is named ``what``."""
    return x.call(what, lambda rows, _: change(rows), x.width) if isinstance(x, Traced) else change(x)


class Unadded:
    """A product of few rows that is still to be multiplied, since one kernel also adds it to the stream."""

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._x, self._weight, self._bias = x, weight, bias

    def product(self) -> torch.Tensor:
        """[tokens, outputs], not added to anything."""
        return kernels.linear(self._x, self._weight, self._bias)

    def add_(self, stream: torch.Tensor) -> torch.Tensor:
        """Add the product to ``stream`` [tokens, outputs] in place; returns the stream's squares for a norm, float32
        [parts, tokens]."""
        return kernels.add_linear_(self._x, self._weight, stream, self._bias)


Delta = Stream | Unadded
"""What a part of a layer adds to the stream."""


def multiplied(delta: Delta) -> Stream:
    """[tokens, columns]"""
    return delta.product() if isinstance(delta, Unadded) else delta


class Unnormed:
    """The input of a product of few rows that one kernel also norms."""

    stream: torch.Tensor
    """The stream with ``x`` added, set by :meth:`product`."""

    def __init__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: torch.Tensor,
        eps: float,
        *,
        plus_one: bool,
        gate: kernels.ActivationKind | None,
        squares: torch.Tensor | None = None,
    ) -> None:
        """``x`` [1, size] is still to be added to ``residual``, if given. Several rows have ``squares``, float32
        [parts, tokens]."""
        self._x, self._residual, self._norm, self._eps = x, residual, norm, eps
        self._plus_one, self._gate, self._squares = plus_one, gate, squares

    def product(self, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[tokens, outputs], gated if there is a gate."""
        product, self.stream = kernels.normed_linear(
            self._x,
            self._norm,
            weight,
            self._eps,
            residual=self._residual,
            squares=self._squares,
            bias=bias,
            kind=self._gate,
            plus_one=self._plus_one,
        )
        return product


Input = Stream | Quantized | Unnormed

_NOWHERE = torch.device("meta")


class ScaledLinear:
    """FP8 or int8 weights [outputs, inputs] with scales by channel or block; inputs plain or quantised."""

    def __init__(self, of: LinearParts, format: FP8Format | Int8Format | OnlineFormat) -> None:
        weights, parts, inputs, context = of.weights, of.outputs, of.inputs, of.context
        self._fp8 = isinstance(format, FP8Format) or (isinstance(format, OnlineFormat) and format.dtype == "fp8")
        self._dtype = torch.float8_e4m3fn if self._fp8 else torch.int8
        outputs = sum(parts.values())
        self._weight = context.empty(outputs, inputs, dtype=self._dtype)
        self._block = isinstance(format, FP8Format) and format.granularity == "block"
        scale_shape = (
            tuple(-(-size // side) for size, side in zip((outputs, inputs), format.block, strict=True))
            if isinstance(format, FP8Format) and self._block
            else (outputs,)
        )
        self._scale = context.empty(*scale_shape, dtype=torch.float32)
        self._bias = of.bias
        self._out_dtype = context.dtype
        self.input_scheme = _scheme(format, self._dtype)
        self.input_scale: torch.Tensor | None = None
        if self.input_scheme is not None and self.input_scheme.granularity == "tensor":
            # parts share their input's scale: the largest covers the values of all
            self.input_scale = torch.zeros(1, dtype=torch.float32, device=context.place)
        start = 0
        for part, size in parts.items():
            rows = slice(start, start + size)
            nbytes = size * (inputs + 4)
            if isinstance(format, OnlineFormat):
                weights.gather(part, ("weight",), self._quantiser(part, rows, inputs), nbytes=nbytes)
            else:
                needed, ignored = endings(format)
                weights.gather(part, needed, self._placer(rows, inputs, format), nbytes=nbytes, ignored=ignored)
            start += size

    def _placer(self, rows: slice, inputs: int, format: FP8Format | Int8Format) -> Place:
        def place(stored: dict[str, torch.Tensor]) -> None:
            outputs = rows.stop - rows.start
            weight, scale = read_scaled(format, stored, outputs, inputs)
            self._weight[rows] = weight.to(self._weight.device)
            if self.input_scale is not None:
                largest = largest_input_scale(format, stored).to(self.input_scale.device)
                torch.maximum(self.input_scale, largest, out=self.input_scale)
            target = rows
            if isinstance(format, FP8Format) and self._block:
                target = slice(rows.start // format.block[0], -(-rows.stop // format.block[0]))
            self._scale[target] = scale.to(self._scale.device)

        return place

    def _quantiser(self, part: str, rows: slice, inputs: int) -> Place:
        def place(stored: dict[str, torch.Tensor]) -> None:
            weight = stored["weight"]
            check_shape(f"{part}.weight", weight, (rows.stop - rows.start, inputs))
            weight = weight.to(self._weight.device)
            values, scale = (
                kernels.quantize_weight_fp8(weight, "channel") if self._fp8 else kernels.quantize_weight_int8(weight)
            )
            self._weight[rows] = values
            self._scale[rows] = scale

        return place

    def __call__(self, x: torch.Tensor | Quantized) -> torch.Tensor:
        """x [tokens, inputs], plain or quantised by :attr:`input_scheme` → [tokens, outputs]."""
        if self.input_scheme is not None and isinstance(x, torch.Tensor):
            x = kernels.quantize(x, self.input_scheme, self.input_scale)
        multiply = kernels.linear_fp8 if self._fp8 else kernels.linear_int8
        return multiply(x, self._weight, self._scale, self._bias, out_dtype=self._out_dtype)


def _scheme(format: FP8Format | Int8Format | OnlineFormat, dtype: torch.dtype) -> ActivationScheme | None:
    activations = "token" if isinstance(format, OnlineFormat) else format.activations
    return None if activations == "none" else ActivationScheme(dtype, activations)


Blocks = GGUFWeight | CodedMatrices
"""GGUF weights: planes of evenly spaced codes, or codes of a table of values."""
W = TypeVar("W", W4Weight, Blocks)


class _PartsLinear(ABC, Generic[W]):
    """Weights of several parts, fused as far as possible once all are loaded, and multiplied separately otherwise.

    Takes plain inputs.
    """

    input_scheme: ActivationScheme | None = None
    input_scale: torch.Tensor | None = None

    def __init__(self, parts: Iterable[str], bias: torch.Tensor | None) -> None:
        self._parts: dict[str, W | None] = dict.fromkeys(parts)
        self._fused: list[W] = []
        self._bias = bias

    def _take(self, part: str, weight: W) -> None:
        self._parts[part] = weight
        found = [weight for weight in self._parts.values() if weight is not None]
        if len(found) == len(self._parts):
            self._fused = self._fuse(found)
            self._parts.clear()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, inputs] → [tokens, outputs]."""
        fused = self._fused
        if len(fused) == 1:
            return self._multiply(x, fused[0], self._bias)
        outputs = [weight.shape[-2] for weight in fused]
        biases = [None] * len(fused) if self._bias is None else self._bias.split(outputs)
        return torch.cat([self._multiply(x, *each) for each in zip(fused, biases, strict=True)], dim=1)

    @abstractmethod
    def _fuse(self, found: list[W]) -> list[W]: ...

    @abstractmethod
    def _multiply(self, x: torch.Tensor, weight: W, bias: torch.Tensor | None) -> torch.Tensor: ...


class Int4Linear(_PartsLinear[W4Weight]):
    """4-bit weights."""

    def __init__(self, of: LinearParts, format: Int4Format) -> None:
        weights, parts, inputs, context = of.weights, of.outputs, of.inputs, of.context
        super().__init__(parts, of.bias)
        needed, ignored = endings(format)
        scales: torch.dtype = getattr(torch, format.scales)
        for part, size in parts.items():
            place = self._placer(part, size, inputs, context.device, format)
            shape = empty_w4(size, inputs, group=format.group, dtype=scales, device=_NOWHERE)
            weights.gather(part, needed, place, nbytes=shape.nbytes, ignored=ignored)

    def _placer(self, part: str, outputs: int, inputs: int, device: torch.device, format: Int4Format) -> Place:
        def place(stored: dict[str, torch.Tensor]) -> None:
            on_device = {ending: tensor.to(device) for ending, tensor in stored.items()}
            self._take(part, pack_int4(format, on_device, outputs, inputs))

        return place

    def _fuse(self, found: list[W4Weight]) -> list[W4Weight]:
        try:
            return [W4Weight.concat(found)]
        except ValueError:  # their inputs have different orders
            return found

    def _multiply(self, x: torch.Tensor, weight: W4Weight, bias: torch.Tensor | None) -> torch.Tensor:
        return kernels.linear_w4(x, weight, bias)


def _planes_of(format: GGUFFormat) -> Kind | None:
    """The block type as planes; None if it becomes codes of a table."""
    return next((kind for kind in GGUF_FORMATS if kind == format.kind), None)


class GGUFLinear(_PartsLinear[Blocks]):
    """GGUF blocks; adjacent parts of one type are fused."""

    def __init__(self, of: LinearParts, formats: Mapping[str, GGUFFormat]) -> None:
        weights, parts, inputs, context = of.weights, of.outputs, of.inputs, of.context
        super().__init__(parts, of.bias)
        for part, size in parts.items():
            format = formats[part]
            weights.ask_raw(f"{part}.weight")
            place = self._placer(part, size, inputs, context.device, format)
            planes = _planes_of(format)
            room: Blocks = (
                empty_blocks(block_kind(format), 1, size, inputs, _NOWHERE)
                if planes is None
                else empty_gguf(size, inputs, planes, _NOWHERE)
            )
            weights.gather(part, ("weight",), place, nbytes=room.nbytes)

    def _placer(self, part: str, outputs: int, inputs: int, device: torch.device, format: GGUFFormat) -> Place:
        def place(stored: dict[str, torch.Tensor]) -> None:
            planes, blocks = _planes_of(format), stored["weight"].to(device)
            weight: Blocks = (
                coded_blocks(blocks, block_kind(format)) if planes is None else GGUFWeight.from_blocks(blocks, planes)
            )
            if weight.shape[-2:] != (outputs, inputs):
                raise WeightError(f"{part}.weight has shape {weight.shape[-2:]}, expected {(outputs, inputs)}")
            self._take(part, weight)

        return place

    def _fuse(self, found: list[Blocks]) -> list[Blocks]:
        alike = (list(group) for _, group in groupby(found, key=lambda weight: weight.kind))
        return [_joined(group) if len(group) > 1 else group[0] for group in alike]

    def _multiply(self, x: torch.Tensor, weight: Blocks, bias: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, CodedMatrices):
            return kernels.linear_coded(x, weight, bias)
        return kernels.linear_gguf(x, weight, bias)


def _joined(weights: list[Blocks]) -> Blocks:
    """Concatenate weights of one type."""
    coded = [weight for weight in weights if isinstance(weight, CodedMatrices)]
    return (
        CodedMatrices.concat(coded) if coded else GGUFWeight.concat([w for w in weights if isinstance(w, GGUFWeight)])
    )
