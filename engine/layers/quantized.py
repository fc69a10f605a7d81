"""Linear layers whose weights stay as a checkpoint stores them, multiplied by the kernel of their format.

Each is made of several parts, fused along the outputs. A part's tensors are gathered while the checkpoint
is read and turned at once into their slice of the layer, so no second copy of more than one part exists.
"""

from collections.abc import Callable, Mapping

import torch

from stentor import kernels
from stentor.kernels import ActivationScheme, GGUFWeight, Quantized, W4Weight
from stentor.kernels.linear_gguf import FORMATS as GGUF_FORMATS
from stentor.kernels.linear_gguf import Kind
from stentor.kernels.linear_gguf import empty_weight as empty_gguf
from stentor.kernels.linear_w4 import empty_weight as empty_w4

from ..quantization.formats import FP8Format, GGUFFormat, Int4Format, Int8Format, OnlineFormat
from ..quantization.stored import StoredError, checked_weight, endings, largest_input_scale, pack_int4, scale_rows
from .layer_context import LayerContext
from .weights import WeightError, WeightMap, check_shape

Input = torch.Tensor | Quantized

_NOWHERE = torch.device("meta")


class ScaledLinear:
    """FP8 or int8 weights [outputs, inputs] with scales by channel or block; inputs quantised or plain."""

    def __init__(
        self,
        weights: WeightMap,
        parts: Mapping[str, int],
        inputs: int,
        context: LayerContext,
        bias: torch.Tensor | None,
        format: FP8Format | Int8Format | OnlineFormat,
    ) -> None:
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
        self._bias = bias
        self._out_dtype = context.dtype
        self.input_scheme = _scheme(format, self._dtype)
        self.input_scale: torch.Tensor | None = None
        if self.input_scheme is not None and self.input_scheme.granularity == "tensor":
            # parts that share an input are multiplied in one: the largest of their scales holds all values
            self.input_scale = torch.zeros(1, dtype=torch.float32, device=context.device)
        start = 0
        for part, size in parts.items():
            rows = slice(start, start + size)
            nbytes = size * (inputs + 4)
            if isinstance(format, OnlineFormat):
                weights.gather(part, ("weight",), self._quantiser(part, rows, inputs), nbytes=nbytes)
            else:
                needed, ignored = endings(format)
                weights.gather(part, needed, self._placer(part, rows, inputs, format), nbytes=nbytes, ignored=ignored)
            start += size

    def _placer(
        self, part: str, rows: slice, inputs: int, format: FP8Format | Int8Format
    ) -> Callable[[dict[str, torch.Tensor]], None]:
        def place(stored: dict[str, torch.Tensor]) -> None:
            outputs = rows.stop - rows.start
            try:
                self._weight[rows] = checked_weight(stored, self._dtype, outputs, inputs).to(self._weight.device)
                scale = scale_rows(format, stored, outputs, inputs)
                if self.input_scale is not None:
                    largest = largest_input_scale(format, stored).to(self.input_scale.device)
                    torch.maximum(self.input_scale, largest, out=self.input_scale)
            except StoredError as error:
                raise WeightError(f"{part}: {error}") from error
            target = rows
            if isinstance(format, FP8Format) and self._block:
                target = slice(rows.start // format.block[0], -(-rows.stop // format.block[0]))
            self._scale[target] = scale.to(self._scale.device)

        return place

    def _quantiser(self, part: str, rows: slice, inputs: int) -> Callable[[dict[str, torch.Tensor]], None]:
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

    def __call__(self, x: Input) -> torch.Tensor:
        """x [tokens, inputs], plain or quantised by :attr:`input_scheme` → [tokens, outputs]."""
        if self.input_scheme is not None and isinstance(x, torch.Tensor):
            x = kernels.quantize(x, self.input_scheme, self.input_scale)
        multiply = kernels.linear_fp8 if self._fp8 else kernels.linear_int8
        return multiply(x, self._weight, self._scale, self._bias, out_dtype=self._out_dtype)


def _scheme(format: FP8Format | Int8Format | OnlineFormat, dtype: torch.dtype) -> ActivationScheme | None:
    activations = "token" if isinstance(format, OnlineFormat) else format.activations
    return None if activations == "none" else ActivationScheme(dtype, activations)


class Int4Linear:
    """Four-bit weights, plain inputs."""

    input_scheme: ActivationScheme | None = None
    input_scale: torch.Tensor | None = None

    def __init__(
        self,
        weights: WeightMap,
        parts: Mapping[str, int],
        inputs: int,
        context: LayerContext,
        bias: torch.Tensor | None,
        format: Int4Format,
    ) -> None:
        self._parts: dict[str, W4Weight | None] = dict.fromkeys(parts)
        self._fused: list[W4Weight] = []
        self._bias = bias
        needed, ignored = endings(format)
        for part, size in parts.items():
            place = self._placer(part, size, inputs, context.device, format)
            shape = empty_w4(size, inputs, group=format.group, dtype=torch.float16, device=_NOWHERE)
            weights.gather(part, needed, place, nbytes=shape.nbytes, ignored=ignored)

    def _placer(
        self, part: str, outputs: int, inputs: int, device: torch.device, format: Int4Format
    ) -> Callable[[dict[str, torch.Tensor]], None]:
        def place(stored: dict[str, torch.Tensor]) -> None:
            on_device = {ending: tensor.to(device) for ending, tensor in stored.items()}
            try:
                self._parts[part] = pack_int4(format, on_device, outputs, inputs)
            except StoredError as error:
                raise WeightError(f"{part}: {error}") from error
            found = [weight for weight in self._parts.values() if weight is not None]
            if len(found) == len(self._parts):
                self._fused = _fuse(found)
                self._parts.clear()

        return place

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, inputs] → [tokens, outputs]."""
        return _side_by_side(x, [weight.shape[0] for weight in self._fused], self._bias, self._multiply)

    def _multiply(self, x: torch.Tensor, which: int, bias: torch.Tensor | None) -> torch.Tensor:
        return kernels.linear_w4(x, self._fused[which], bias)


def _fuse(found: list[W4Weight]) -> list[W4Weight]:
    """One weight, or the parts as they are where each orders its inputs in its own way."""
    try:
        return [W4Weight.concat(found)]
    except ValueError:
        return found


def _kind(format: GGUFFormat) -> Kind:
    found: Kind | None = next((kind for kind in GGUF_FORMATS if kind == format.kind), None)
    assert found is not None, f"{format.kind} has no kernel"
    return found


class GGUFLinear:
    """GGUF's blocks; parts of one kind that stand beside each other are fused, others are multiplied apart."""

    input_scheme: ActivationScheme | None = None
    input_scale: torch.Tensor | None = None

    def __init__(
        self,
        weights: WeightMap,
        parts: Mapping[str, int],
        inputs: int,
        context: LayerContext,
        bias: torch.Tensor | None,
        formats: Mapping[str, GGUFFormat],
    ) -> None:
        self._parts: dict[str, GGUFWeight | None] = dict.fromkeys(parts)
        self._fused: list[GGUFWeight] = []
        self._bias = bias
        for part, size in parts.items():
            kind = _kind(formats[part])
            weights.ask_raw(f"{part}.weight")
            place = self._placer(part, size, inputs, context.device, kind)
            weights.gather(part, ("weight",), place, nbytes=empty_gguf(size, inputs, kind, _NOWHERE).nbytes)

    def _placer(
        self, part: str, outputs: int, inputs: int, device: torch.device, kind: Kind
    ) -> Callable[[dict[str, torch.Tensor]], None]:
        def place(stored: dict[str, torch.Tensor]) -> None:
            weight = GGUFWeight.from_blocks(stored["weight"].to(device), kind)
            if weight.shape != (outputs, inputs):
                raise WeightError(f"{part}.weight has shape {weight.shape}, expected {(outputs, inputs)}")
            self._parts[part] = weight
            found = [weight for weight in self._parts.values() if weight is not None]
            if len(found) == len(self._parts):
                for weight in found:
                    if self._fused and self._fused[-1].kind == weight.kind:
                        self._fused[-1] = GGUFWeight.concat([self._fused[-1], weight])
                    else:
                        self._fused.append(weight)
                self._parts.clear()

        return place

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, inputs] → [tokens, outputs]."""
        return _side_by_side(x, [weight.shape[0] for weight in self._fused], self._bias, self._multiply)

    def _multiply(self, x: torch.Tensor, which: int, bias: torch.Tensor | None) -> torch.Tensor:
        return kernels.linear_gguf(x, self._fused[which], bias)


def _side_by_side(
    x: torch.Tensor,
    outputs: list[int],
    bias: torch.Tensor | None,
    multiply: Callable[[torch.Tensor, int, torch.Tensor | None], torch.Tensor],
) -> torch.Tensor:
    """The products with several weights, joined along the outputs."""
    if len(outputs) == 1:
        return multiply(x, 0, bias)
    biases = [None] * len(outputs) if bias is None else list(bias.split(outputs))
    return torch.cat([multiply(x, which, own) for which, own in enumerate(biases)], dim=1)
