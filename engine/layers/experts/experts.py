"""The matrices of a layer's experts: plain, as codes expanded by kernels, or packed for a CPU."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial

import torch
from msgspec.structs import replace

from stentor import kernels
from stentor.kernels.forward import Traced
from stentor.kernels.linear_packed import PackedWeight, empty_packed, linear_packed, pack_plain_
from stentor.kernels.linear_packed.weight import TILE
from stentor.protocols.ipc.config import MoEBackend

from ...model_config.spec.mlp import OWN_GATES, ExpertNames, ExpertTensor, MoESpec
from ...quantization.choose import LinearTraits, Selection, select
from ...quantization.formats import Format, FP4Format, FP8Format, GGUFFormat, OnlineFormat
from ...quantization.stored import FP4Weight, Stored, expand, gpt_oss_weight
from ..linear.coded import coded_matrices, gather_blocks, gather_coded, put_fp4, put_fp8
from ..linear.layer_context import LayerContext
from ..linear.linear import add_expanded
from ..linear.packed import gather_packed, pack_blocks_, pack_fp4, packed_form, quantize_
from ..linear.weights import Target, WeightError, WeightMap, check_plain, check_shape


def experts_of(weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, context: LayerContext) -> "Experts":
    """Make the experts: packed if other weights are, and if each expert consists of whole tiles. ``prefix``: of the
    layer."""
    if context.packed and not (hidden % TILE or spec.inner % TILE):
        return PackedExperts(weights, prefix, spec, hidden, context)
    return StoredExperts(weights, prefix, spec, hidden, context)


class Experts(ABC):
    """The experts of one layer."""

    def __init__(
        self, weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, context: LayerContext, bias: torch.dtype
    ) -> None:
        """``prefix``: of the layer. ``bias``: dtype of biases."""
        self._spec, self._hidden, self._invariant = spec, hidden, context.invariant
        self._experts = len(spec.own_experts)
        sizes = (hidden, spec.into)
        down, gate_up = (context.empty(self._experts, size, dtype=bias) if spec.bias else None for size in sizes)
        if spec.sum_bias:
            down = context.empty(self._experts, hidden, dtype=bias)
            own = down
            weights.add(f"{prefix}.{spec.sum_bias}", own, shape=(hidden,), read=lambda stored: stored.expand_as(own))
        self._gate_up_bias, self._down_bias = gate_up, down
        self._make(prefix, context)
        usual, *others = spec.names
        for name, target in self._bias_targets(prefix, usual, out=None):
            weights.add(name, target.tensor, shape=target.shape, read=target.read)
        for matrix in spec.expert_tensors(hidden):
            self._add(weights, f"{prefix}.{matrix.name}", matrix, usual, context)
        for names in others:
            for out in (False, True):
                weights.add_instead(
                    [name for name, _ in self._bias_targets(prefix, usual, out=out)],
                    {name: target.fill for name, target in self._bias_targets(prefix, names, out=out)},
                )
                weights.add_instead(
                    [f"{prefix}.{each.name}" for each in spec.expert_tensors(hidden) if each.out == out],
                    {
                        f"{prefix}.{each.name}": partial(self._fill, each, names)
                        for each in spec.expert_tensors(hidden, names)
                        if each.out == out
                    },
                )

    def _chosen(self, prefix: str, context: LayerContext, *, out: bool) -> Format | None:
        """The format of all matrices of one product if it can be multiplied as stored; None if they are expanded."""
        parts = [
            f"{prefix}.{each.name}".removesuffix(".weight")
            for each in self._spec.expert_tensors(self._hidden)
            if each.out == out
        ]
        formats = {context.format_of(part) for part in parts}
        (format, *others) = formats
        if others or format is None or _selection(format, self._spec, self._hidden, context, out).name == "expanded":
            return None
        return format

    def _note(
        self, weights: WeightMap, tensor: ExpertTensor, format: Format, chosen: Format | None, context: LayerContext
    ) -> None:
        """Note for the operator how matrices of a format are multiplied, and why."""
        selection = _selection(format, self._spec, self._hidden, context, tensor.out)
        if chosen is None and selection.name != "expanded":
            selection = Selection("expanded", ("experts of one layer are stored otherwise",))
        weights.notes[selection.describe(format, context.dtype).replace("weights", "weights of experts", 1)] += 1

    def _rows_of(self, tensor: ExpertTensor) -> int:
        """Outputs of one expert in the whole matrix."""
        return self._hidden if tensor.out else self._spec.into

    def _bias_targets(self, prefix: str, names: ExpertNames, *, out: bool | None) -> Iterator[tuple[str, Target]]:
        """Targets of stored biases, of one product or both."""
        for each in self._spec.expert_biases(self._hidden, names):
            whole = self._down_bias if each.out else self._gate_up_bias
            if whole is not None and out in (None, each.out):
                read = _gates_first if names.interleaved and not each.out else None
                yield f"{prefix}.{each.name}", Target(_part(whole, each), each.shape, read)

    def _fill(self, tensor: ExpertTensor, names: ExpertNames, name: str, stored: torch.Tensor) -> None:
        """Fill from a plain tensor, stored with inputs first or as transformers 5 does. Raises :class:`WeightError`."""
        transposed = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2])
        if names.transposed and tuple(stored.shape) == transposed != tensor.shape:
            stored = stored.transpose(-1, -2)
        check_shape(name, stored, tensor.shape)
        check_plain(name, stored)
        self._put(tensor, _matrices(stored, tensor, names))

    @abstractmethod
    def _make(self, prefix: str, context: LayerContext) -> None:
        """Allocate the matrices."""

    def _gather_fp4(self, weights: WeightMap, name: str, tensor: ExpertTensor, names: ExpertNames, nbytes: int) -> None:
        """Register blocks and scales of all experts' rows [experts, outputs], copied expert by expert."""
        part, _, ending = name.rpartition(".")
        names = replace(names, transposed=False)
        shape = (tensor.outputs, self._spec.inner if tensor.out else self._hidden)

        def place(stored: dict[str, torch.Tensor]) -> None:
            blocks, scales = stored[f"{ending}_blocks"], stored[f"{ending}_scales"]
            if len(blocks) != len(tensor.of) or len(scales) != len(blocks):
                raise WeightError(f"{name}_blocks hold {len(blocks)} experts, expected {len(tensor.of)}")
            for at, expert in enumerate(tensor.of):
                rows = gpt_oss_weight(blocks[at], scales[at], *shape)
                codes, scale = (_matrices(each.unsqueeze(0), tensor, names)[0] for each in rows[:2])
                self._put_fp4(tensor._replace(expert=expert), FP4Weight(codes, scale, rows.factor))

        weights.gather(part, (f"{ending}_blocks", f"{ending}_scales"), place, nbytes=nbytes)

    def _gather_fp8(
        self,
        weights: WeightMap,
        name: str,
        tensor: ExpertTensor,
        names: ExpertNames,
        format: FP8Format,
        nbytes: int,
    ) -> None:
        """Register codes [experts, outputs, inputs] and scales of all experts, copied expert by expert."""
        part, _, ending = name.rpartition(".")
        scale, given = (f"{ending}{format.stacked_ending(each)}" for each in (format.scale_ending, format.input_ending))
        shape = (tensor.outputs, self._spec.inner if tensor.out else self._hidden)
        alternate = names.interleaved and not tensor.out
        if alternate and format.granularity == "block" and format.block[0] > 1:
            raise WeightError(
                f"{name} has gates and ups in turn, and scales of blocks of {format.block[0]} rows, expected of one"
            )

        def place(stored: dict[str, torch.Tensor]) -> None:
            codes, scales = stored[ending], stored[scale]
            if len(codes) != len(tensor.of) or len(scales) != len(codes):
                raise WeightError(
                    f"{name} holds {len(codes)} experts and {len(scales)} scales of them, expected {len(tensor.of)}"
                )
            for at, expert in enumerate(tensor.of):
                of_one = {"weight": codes[at], format.scale_ending: scales[at]}
                if alternate:
                    of_one = {each: _rows_gates_first(values, tensor.outputs) for each, values in of_one.items()}
                self._put_fp8(tensor._replace(expert=expert), format, of_one, shape)

        weights.gather(part, (ending, scale), place, nbytes=nbytes, ignored=(given,))

    def _put_fp8(self, tensor: ExpertTensor, format: FP8Format, stored: Stored, shape: tuple[int, int]) -> None:
        """Fill the place of one expert's ``tensor`` [outputs, inputs]."""
        self._put(tensor, expand(format, stored, *shape, torch.float32))

    @abstractmethod
    def _add(
        self, weights: WeightMap, name: str, tensor: ExpertTensor, names: ExpertNames, context: LayerContext
    ) -> None:
        """Register what fills the place of ``tensor``, in any format."""

    @abstractmethod
    def _put(self, tensor: ExpertTensor, matrices: torch.Tensor) -> None:
        """Fill the place of ``tensor`` with plain values [outputs, inputs], or those of all experts."""

    def _put_fp4(self, tensor: ExpertTensor, matrix: FP4Weight) -> None:
        """Fill the place of one expert's ``tensor``."""
        self._put(tensor, matrix.values())

    @abstractmethod
    def __call__(self, x: torch.Tensor, routing: kernels.Routing) -> torch.Tensor:
        """x [tokens, hidden] → [tokens, hidden]"""

    @abstractmethod
    def gate_up(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """float32 [rows, hidden] → [rows, gates and ups], before the activation"""

    @abstractmethod
    def down(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """float32 [rows, inner] → [rows, hidden]"""


class StoredExperts(Experts):
    """Experts as codes if kernels expand their format, else in the compute dtype."""

    def __init__(self, weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, context: LayerContext) -> None:
        super().__init__(weights, prefix, spec, hidden, context, context.dtype)
        self._dtype = context.dtype
        self._provider = self._choose_provider(weights, context)

    def _choose_provider(self, weights: WeightMap, context: LayerContext) -> MoEBackend:
        """The backend that multiplies; noted for the operator if there is a choice, or one was requested."""
        chosen = kernels.choose_experts(
            context.device,
            context.dtype,
            (self._hidden, self._spec.inner),
            coded=any(format is not None for format in self._formats),
            biased=self._spec.bias or bool(self._spec.sum_bias),
            weight_input=self._spec.weight_input,
            invariant=context.invariant,
            own_gate=self._spec.activation in OWN_GATES,
            wanted=context.moe_backend,
        )
        if context.device.type == "cuda" or context.moe_backend != "auto":
            weights.notes[chosen.describe("products of experts")] += 2
        return "triton" if chosen.provider is None else chosen.provider.name

    def _make(self, prefix: str, context: LayerContext) -> None:
        experts, inner, hidden = self._experts, self._spec.inner, self._hidden
        self._formats = tuple(self._chosen(prefix, context, out=out) for out in (False, True))
        sizes = ((self._spec.into, hidden), (hidden, inner))
        self._gate_up, self._down = (
            context.empty(experts, *size) if format is None else coded_matrices(format, experts, *size, context.place)
            for format, size in zip(self._formats, sizes, strict=True)
        )

    def _add(
        self, weights: WeightMap, name: str, tensor: ExpertTensor, names: ExpertNames, context: LayerContext
    ) -> None:
        part, whole = name.removesuffix(".weight"), self._down if tensor.out else self._gate_up
        format, chosen = context.format_of(part), self._formats[tensor.out]
        nbytes = whole.nbytes * tensor.outputs // self._rows_of(tensor)
        nbytes = nbytes * (len(tensor.of) if tensor.expert is None else 1) // len(whole)
        if format is not None:
            self._note(weights, tensor, format, chosen, context)
        if isinstance(format, FP4Format) and format.packing == "gpt-oss":
            self._gather_fp4(weights, name, tensor, names, nbytes)
        elif isinstance(format, FP8Format) and tensor.expert is None:
            self._gather_fp8(weights, name, tensor, names, format, nbytes)
        elif isinstance(whole, kernels.CodedMatrices):
            if isinstance(chosen, GGUFFormat) and len(tensor.of) == len(whole):
                gather_blocks(weights, name, whole, tensor.first, tensor.outputs, chosen, nbytes)
                return
            if tensor.expert is None:
                raise WeightError(f"{name} holds several experts in {whole.kind}, which is not read")
            gather_coded(weights, part, whole, tensor.expert, tensor.first, tensor.outputs, chosen, nbytes)
        elif tensor.expert is not None:
            add_expanded(weights, part, _part(whole, tensor), format)
        else:
            read = partial(_matrices, tensor=tensor, names=names)
            weights.add(name, _part(whole, tensor), shape=tensor.shape, read=read)

    def _put(self, tensor: ExpertTensor, matrices: torch.Tensor) -> None:
        whole = self._down if tensor.out else self._gate_up
        if isinstance(whole, kernels.CodedMatrices):
            raise WeightError(f"experts are described as {whole.kind}, and stored plain")
        _part(whole, tensor).copy_(matrices)

    def _put_fp4(self, tensor: ExpertTensor, matrix: FP4Weight) -> None:
        whole = self._down if tensor.out else self._gate_up
        if isinstance(whole, torch.Tensor):
            super()._put_fp4(tensor, matrix)
        else:
            put_fp4(whole, tensor.expert or 0, tensor.first, matrix)

    def _put_fp8(self, tensor: ExpertTensor, format: FP8Format, stored: Stored, shape: tuple[int, int]) -> None:
        whole = self._down if tensor.out else self._gate_up
        if isinstance(whole, torch.Tensor):
            super()._put_fp8(tensor, format, stored, shape)
        else:
            put_fp8(whole, tensor.expert or 0, tensor.first, format, stored, shape)

    def __call__(self, x: torch.Tensor, routing: kernels.Routing) -> torch.Tensor:
        """x [tokens, hidden] of the compute dtype → the same"""
        return kernels.experts_mlp(
            x,
            routing,
            self._gate_up,
            self._down,
            self._spec.activation,
            gate_up_bias=self._gate_up_bias,
            down_bias=self._down_bias,
            weight_input=self._spec.weight_input,
            invariant=self._invariant,
            provider=self._provider,
        )

    def gate_up(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return self._product(x, self._gate_up, self._gate_up_bias, expert)

    def down(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return self._product(x, self._down, self._down_bias, expert)

    def _product(
        self,
        x: torch.Tensor,
        matrices: torch.Tensor | kernels.CodedMatrices,
        bias: torch.Tensor | None,
        expert: int,
    ) -> torch.Tensor:
        matrix = matrices[expert] if isinstance(matrices, torch.Tensor) else matrices.values(expert, self._dtype)
        own = None if bias is None else bias[expert]
        return kernels.linear(x.to(self._dtype), matrix, own, invariant=self._invariant)


class PackedExperts(Experts):
    """Experts packed for a CPU, in their stored format if a kernel supports it."""

    def __init__(self, weights: WeightMap, prefix: str, spec: MoESpec, hidden: int, context: LayerContext) -> None:
        super().__init__(weights, prefix, spec, hidden, context, torch.float32)

    def _make(self, prefix: str, context: LayerContext) -> None:
        experts, inner, hidden = self._experts, self._spec.inner, self._hidden
        self._formats = tuple(self._chosen(prefix, context, out=out) for out in (False, True))
        sizes = ((experts * self._spec.into, hidden), (experts * hidden, inner))
        forms = (packed_form(format, context) for format in self._formats)
        self._gate_up, self._down = (
            empty_packed(*size, kind, scaling=scaling, device=context.place, take=context.take)
            for (kind, scaling), size in zip(forms, sizes, strict=True)
        )

    def _add(
        self, weights: WeightMap, name: str, tensor: ExpertTensor, names: ExpertNames, context: LayerContext
    ) -> None:
        part = name.removesuffix(".weight")
        format, chosen = context.format_of(part), self._formats[tensor.out]
        weight = self._down if tensor.out else self._gate_up
        nbytes = weight.nbytes * tensor.outputs // self._rows_of(tensor)
        if format is not None:
            self._note(weights, tensor, format, chosen, context)
        if isinstance(format, FP4Format) and format.packing == "gpt-oss":
            self._gather_fp4(weights, name, tensor, names, nbytes)
        elif isinstance(format, FP8Format) and tensor.expert is None:
            self._gather_fp8(weights, name, tensor, names, format, nbytes)
        elif tensor.expert is not None:
            first = self._first(tensor, tensor.expert)
            gather_packed(weights, part, weight, first, tensor.outputs, format, chosen)
        else:
            stem, _, ending = name.rpartition(".")
            place = partial(self._fill, tensor, names, name)
            if isinstance(chosen, GGUFFormat):
                weights.ask_raw(name)
                place = partial(self._pack_blocks, tensor, chosen, name)
            elif chosen is not None and not isinstance(chosen, OnlineFormat):
                raise WeightError(f"{name} holds several experts in {chosen.name}, which is not read")
            weights.gather(stem, (ending,), lambda stored: place(stored[ending]), nbytes=nbytes)

    def _pack_blocks(self, tensor: ExpertTensor, format: GGUFFormat, name: str, blocks: torch.Tensor) -> None:
        """Pack blocks of all experts, uint8 [experts, outputs, bytes of a row]."""
        weight = self._down if tensor.out else self._gate_up
        for expert, rows in zip(tensor.of, blocks.view(len(tensor.of), tensor.outputs, -1), strict=True):
            try:
                pack_blocks_(weight, self._first(tensor, expert), rows, format.kind)
            except ValueError as error:
                raise WeightError(f"{name}: {error}") from error

    def _put(self, tensor: ExpertTensor, matrices: torch.Tensor) -> None:
        weight = self._down if tensor.out else self._gate_up
        pack = quantize_ if isinstance(self._formats[tensor.out], OnlineFormat) else pack_plain_
        if tensor.expert is not None:
            pack(weight, self._first(tensor, tensor.expert), matrices)
            return
        for expert, matrix in zip(tensor.of, matrices, strict=True):
            pack(weight, self._first(tensor, expert), matrix)

    def _put_fp4(self, tensor: ExpertTensor, matrix: FP4Weight) -> None:
        if self._formats[tensor.out] is None:
            super()._put_fp4(tensor, matrix)
        else:
            pack_fp4(self._down if tensor.out else self._gate_up, self._first(tensor, tensor.expert or 0), matrix)

    def _first(self, tensor: ExpertTensor, expert: int) -> int:
        """First output of an expert's part."""
        return expert * self._rows_of(tensor) + tensor.first

    def __call__(self, x: torch.Tensor, routing: kernels.Routing) -> torch.Tensor:
        """x [tokens, hidden] float32 or bfloat16 → the same"""
        return kernels.packed_experts_mlp(
            x,
            routing,
            self._gate_up,
            self._down,
            self._spec.activation,
            gate_up_bias=self._gate_up_bias,
            down_bias=self._down_bias,
            weight_input=self._spec.weight_input,
        )

    def gate_up(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return self._product(x, self._gate_up, self._gate_up_bias, expert)

    def down(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return self._product(x, self._down, self._down_bias, expert)

    def _product(self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, expert: int) -> torch.Tensor:
        each = weight.shape[0] // self._experts
        return linear_packed(x, weight.rows(expert * each, each), None if bias is None else bias[expert])

    def traced(self, x: Traced, logits: Traced, router: kernels.Router, correction: torch.Tensor | None) -> Traced:
        """:meth:`__call__` while a pass is recorded; ``router`` chooses experts by ``logits``."""
        return x.moe(
            logits,
            router,
            self._gate_up,
            self._down,
            self._spec.activation,
            score_bias=correction,
            gate_up_bias=self._gate_up_bias,
            down_bias=self._down_bias,
            weight_input=self._spec.weight_input,
        )


def _selection(format: Format, spec: MoESpec, hidden: int, context: LayerContext, out: bool) -> Selection:
    """The kernel for experts of a format. Raises :class:`WeightError`."""
    inputs, outputs = (spec.inner, (hidden,)) if out else (hidden, (spec.inner,) * (spec.into // spec.inner))
    place = (context.device, context.dtype, inputs, outputs, context.invariant, context.packed)
    layer = LinearTraits(format, *place, experts=True)
    try:
        return select(layer, context.backend)
    except ValueError as error:
        raise WeightError(f"experts: {error}") from error


def _part(whole: torch.Tensor, tensor: ExpertTensor) -> torch.Tensor:
    """The outputs of [experts, outputs, ...] that a stored tensor fills, of its expert or of several."""
    outputs = slice(tensor.first, tensor.first + tensor.outputs)
    return whole[tensor.of.start : tensor.of.stop, outputs] if tensor.expert is None else whole[tensor.expert, outputs]


def _matrices(stored: torch.Tensor, tensor: ExpertTensor, names: ExpertNames) -> torch.Tensor:
    """Stored values as [outputs, inputs] or [experts, outputs, inputs], gates before ups."""
    if tensor.expert is not None:
        return stored
    if tensor.rows:
        stored = stored.unflatten(0, (-1, tensor.rows))
    if names.turned(out=tensor.out):
        stored = stored.transpose(1, 2)
    return _gates_first(stored) if names.interleaved and not tensor.out else stored


def _gates_first(stored: torch.Tensor) -> torch.Tensor:
    """[experts, gate, up, gate, up, ..., inputs] → [experts, gates, ups, inputs], or without inputs"""
    return torch.cat((stored[:, 0::2], stored[:, 1::2]), dim=1)


def _rows_gates_first(values: torch.Tensor, outputs: int) -> torch.Tensor:
    """Codes or scales of one expert, of which gates and ups alternate, with all gates first; what is no row of each
    output stays as it is."""
    if not values.dim() or len(values) != outputs:
        return values
    return torch.cat((values[0::2].view(torch.uint8), values[1::2].view(torch.uint8))).view(values.dtype)
