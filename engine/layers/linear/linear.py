"""Linear layers over projections of any stored format, fused along the outputs."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Protocol, overload

import torch
from msgspec.structs import replace

from stentor import kernels
from stentor.kernels.forward import Traced
from stentor.kernels.linear_normed import MOST_ROWS, choose_added
from stentor.kernels.linear_normed import choose as choose_normed
from stentor.kernels.quantize import ActivationScheme, Quantized

from ...model_config.spec.model import TaskAdapters
from ...model_config.spec.projection import Projection
from ...quantization.choose import LinearTraits, Selection, select
from ...quantization.formats import (
    Format,
    FP4Format,
    FP8Format,
    GGUFFormat,
    GroupedInt8Format,
    Int4Format,
    Int8Format,
    OnlineFormat,
)
from ...quantization.stored import PartFormat, endings, expand
from .adapters import AdaptedLinear, AdapterRows
from .coded import CodedLinear
from .layer_context import LayerContext, LinearParts
from .packed import PackedLinear
from .parts import BeforePart, parts
from .quantized import Delta, GGUFLinear, Input, Int4Linear, ScaledLinear, Stream, Unadded, Unnormed
from .rank_group import RankGroup
from .task_adapters import linear_of_tasks
from .weights import WeightError, WeightMap

_LEAST_ROWS: Final = 16
"""Least rows of a part of a product; for fewer, reading the weights takes longer than multiplying."""
_TUNED_ROWS: Final = (16, 32, MOST_ROWS)
"""Numbers of rows that the tuning table distinguishes; others have the entry of the next."""


class _Multiplier(Protocol):
    """Multiplies by a weight: one of the classes of :mod:`.quantized`, or :class:`PlainLinear`."""

    input_scheme: ActivationScheme | None
    input_scale: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class PlainLinear:
    """A weight [outputs, inputs] of the compute dtype, with an optional bias [outputs]."""

    input_scheme: ActivationScheme | None = None
    input_scale: torch.Tensor | None = None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, invariant: bool) -> None:
        self.weight = weight
        self._bias = bias
        self._invariant = invariant

    def __call__(self, x: Stream | Unnormed) -> torch.Tensor:
        """x [tokens, inputs] → [tokens, outputs]. Not available in programs, which need packed weights."""
        if not isinstance(x, torch.Tensor):
            assert isinstance(x, Unnormed)
            return x.product(self.weight, self._bias)
        return kernels.linear(x, self.weight, self._bias, invariant=self._invariant)

    def takes_norm(self, x: torch.Tensor, gate: kernels.ActivationKind | None, *, squared: bool) -> bool:
        """Whether one kernel norms ``x`` [tokens, inputs], multiplies it and optionally gates the product; ``squared``:
        given its squares."""
        alike = (squared or x.shape[0] == 1) and x.dtype == self.weight.dtype and not self._invariant
        return alike and choose_normed(x, self.weight, gate, squared=squared) == "triton"

    def unadded(self, x: torch.Tensor) -> Unadded | None:
        """The product of ``x`` [tokens, inputs], if one kernel multiplies and adds it to the stream."""
        alike = 1 < x.shape[0] <= MOST_ROWS and x.dtype == self.weight.dtype and not self._invariant
        added = alike and choose_added(x, self.weight) == "triton"
        return Unadded(x, self.weight, self._bias) if added else None


class ApartLinear:
    """Parts of which each takes one of several inputs side by side."""

    input_scheme: ActivationScheme | None = None
    input_scale: torch.Tensor | None = None

    def __init__(self, of: LinearParts, sources: Sequence[int]) -> None:
        """``sources``: the number of each part's input; ``of.inputs``: numbers of one input."""
        self._inputs, self._outputs = of.inputs, sum(of.outputs.values())
        self._runs: list[tuple[int, _Multiplier]] = []
        for source, run in groupby(zip(sources, of.outputs.items(), strict=True), lambda part: part[0]):
            own = replace(of, outputs=dict(part for _, part in run))
            self._runs.append((source, _build(own)))

    @overload
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    @overload
    def __call__(self, x: Traced) -> Traced: ...

    def __call__(self, x: Stream) -> Stream:
        """x [tokens, inputs of all] → [tokens, outputs]"""
        if isinstance(x, Traced):
            return x.call("products of several inputs", lambda rows, _: self._product(rows), self._outputs)
        return self._product(x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        inputs = [part.contiguous() for part in x.split(self._inputs, dim=1)]
        return torch.cat([multiply(inputs[source]) for source, multiply in self._runs], dim=1)


class Linear:
    """y = act(x Wᵀ + b) with W [sum of parts, inputs]; each part is a projection with a stored name."""

    def __init__(
        self,
        weights: WeightMap,
        parts: dict[str, int],
        inputs: int,
        context: LayerContext,
        *,
        bias: bool | Container[str] = False,
        activation: kernels.ActivationKind | None = None,
        dtype: torch.dtype | None = None,
        adapted: AdaptedLinear | None = None,
        sources: Sequence[int] = (),
    ) -> None:
        """
        Args:
            sources: as :attr:`.Projection.sources`.
            bias: whether all parts have one, or the names of those that do; the others' is zero.
            dtype: of ``y``.
            adapted: the adapters of the product.
        """
        self._activation, self._dtype, self._adapted, self._stream = activation, dtype, adapted, context.stream
        self.gate: kernels.ActivationKind | None = None
        """Gate of a product that is fused with its norm; other products are gated by their callers."""
        self._before = context.before_part
        added = torch.float32 if context.packed else context.dtype
        bias_ = context.empty(sum(parts.values()), dtype=added) if bias else None
        if bias_ is not None:
            for name, slice_ in zip(parts, bias_.split(list(parts.values())), strict=True):
                if isinstance(bias, bool) or name in bias:
                    weights.add(f"{name}.bias", slice_)
                elif not context.filled:
                    slice_.zero_()
        of = LinearParts(weights, parts, inputs, context, bias_)
        self._multiply = ApartLinear(of, sources) if sources else _build(of)

    @classmethod
    def of(
        cls,
        weights: WeightMap,
        prefix: str,
        projection: Projection,
        context: LayerContext,
        *,
        adapters: TaskAdapters | None = None,
        adaptable: bool = False,
        activation: kernels.ActivationKind | None = None,
        dtype: torch.dtype | None = None,
        summed: bool = False,
    ) -> "Linear":
        """Make the linear of a spec's projection, in the layer with this name prefix.

        Args:
            adapters: task adapters, stored under the first part's name.
            adaptable: calls pass the rows' adapters, so that adapters may be loaded.
            summed: if workers split the model, each has a part of the inputs.
        """
        parts = {f"{prefix}.{name}": outputs for name, outputs in projection.parts}
        inputs = projection.inputs
        adapted: AdaptedLinear | None = None
        if adapters is not None:
            adapted = linear_of_tasks(weights, parts, inputs, adapters, context)
        elif adaptable:
            adapted = context.adapted(parts, inputs)
        biased = {f"{prefix}.{name}" for name, _ in projection.parts if name not in projection.unbiased}
        bias = biased if projection.bias else False
        if projection.transposed:
            for name, size in parts.items():
                check_arranged(name, context)
                weights.arrange(f"{name}.weight", (inputs, size), lambda stored: stored.t().contiguous())
        made = SummedLinear if summed and context.ranks is not None else cls
        options: dict[str, Any] = {"bias": bias, "activation": activation, "dtype": dtype, "adapted": adapted}
        return made(weights, parts, inputs, context, **options, sources=projection.sources)

    @property
    def input_scheme(self) -> ActivationScheme | None:
        """How inputs should be quantised before; None if they must be plain, as for adapters."""
        return None if self._adapted is not None else self._multiply.input_scheme

    @property
    def input_scale(self) -> torch.Tensor | None:
        """float32 [1] if :attr:`input_scheme` has granularity ``tensor``."""
        return self._multiply.input_scale

    def takes_norm(self, x: torch.Tensor, *, squared: bool = False) -> bool:
        """Whether it accepts ``x`` [tokens, inputs] as :class:`Unnormed`; ``squared``: with its squares."""
        bare = self._bare(x)
        return bare is not None and bare.takes_norm(x, self.gate, squared=squared)

    @property
    def adds(self) -> bool:
        """Whether :meth:`late` may leave a product of some number of rows, by the tuning table as it is now."""
        multiply = self._multiply
        return isinstance(multiply, PlainLinear) and any(
            self._unadded(multiply.weight.new_empty(rows, multiply.weight.shape[1])) for rows in _TUNED_ROWS
        )

    def late(self, x: Input, adapters: AdapterRows | None = None) -> Delta:
        """The product for the stream, computed only by the norm behind it if one kernel also adds it to the stream."""
        unadded = self._unadded(x) if isinstance(x, torch.Tensor) else None
        return self(x, adapters) if unadded is None else unadded

    def _unadded(self, x: torch.Tensor) -> Unadded | None:
        bare = self._bare(x)
        return None if bare is None else bare.unadded(x)

    def _bare(self, x: torch.Tensor) -> PlainLinear | None:
        """The plain weight, if a call only multiplies ``x`` by it."""
        if not isinstance(self._multiply, PlainLinear) or self._adapted is not None or self._before is not None:
            return None
        return self._multiply if self._activation is None and self._dtype in (None, x.dtype) else None

    @overload
    def __call__(self, x: torch.Tensor | Quantized, adapters: AdapterRows | None = None) -> torch.Tensor: ...

    @overload
    def __call__(self, x: Input, adapters: AdapterRows | None = None) -> Stream: ...

    def __call__(self, x: Input, adapters: AdapterRows | None = None) -> Stream:
        """x [tokens, inputs], plain, quantised by :attr:`input_scheme`, or unnormed → [tokens, outputs].

        ``adapters``: of its rows.
        """
        if isinstance(x, Traced):
            return self._traced(x, adapters)
        if self._before is not None:
            if isinstance(self._multiply, PackedLinear) and isinstance(x, torch.Tensor) and adapters is None:
                return self._in_parts(x, self._multiply, self._before)
            self._before(math.inf)
        if adapters is None or self._adapted is None:
            return self._product(x, self._activation, self._dtype)
        assert isinstance(x, torch.Tensor)
        product = self._adapted.add_(self._product(x, None, self._stream), x.to(self._stream), adapters)
        if self._activation is not None:
            product = kernels.activate_(product, self._activation)
        return product if self._dtype is None else product.to(self._dtype)

    def _traced(self, x: Traced, adapters: AdapterRows | None) -> Stream:
        """The product while a pass is recorded; ``adapters``: set if rows may have some."""
        traced: Stream = self._multiply(x)  # type: ignore[arg-type]  # packed
        assert isinstance(traced, Traced)
        if adapters is not None and self._adapted is not None:
            traced = traced.adapted(self._adapted.slots)
        return traced if self._activation is None else traced.activated(self._activation)

    def _in_parts(self, x: torch.Tensor, multiply: PackedLinear, before: BeforePart) -> torch.Tensor:
        """The product in parts of rows: with packed weights a row's result does not depend on other rows."""
        product: torch.Tensor | None = None
        for rows in parts(len(x), multiply.multiplications, before, _LEAST_ROWS):
            found = multiply(x[rows], self._activation, self._dtype)
            if len(found) == len(x):
                return found
            if product is None:
                product = found.new_empty(len(x), found.shape[1])
            product[rows] = found
        return self._product(x, self._activation, self._dtype) if product is None else product

    def _product(
        self,
        x: torch.Tensor | Quantized | Unnormed,
        activation: kernels.ActivationKind | None,
        dtype: torch.dtype | None,
    ) -> torch.Tensor:
        """The product, activated and rounded in the same pass if possible."""
        if isinstance(self._multiply, PackedLinear):
            assert isinstance(x, torch.Tensor)
            return self._multiply(x, activation, dtype)
        product = self._multiply(x)  # type: ignore[arg-type]  # quantised where there is a scheme
        if activation is not None:
            product = kernels.activate_(product, activation)
        return product if dtype is None or product.dtype == dtype else product.to(dtype)


def check_arranged(part: str, context: LayerContext) -> None:
    """Raise :class:`WeightError` if a part whose weight must be transposed is quantised."""
    format = context.format_of(part)
    if format is not None and not isinstance(format, OnlineFormat):
        raise WeightError(f"{part} is stored in {format.name}, and this architecture's is read of plain weights alone")


class SummedLinear(Linear):
    """A linear of which each rank has a part of the inputs; sums the ranks' products."""

    def __init__(
        self, weights: WeightMap, parts: dict[str, int], inputs: int, context: LayerContext, **options: Any
    ) -> None:
        super().__init__(weights, parts, inputs, context, **options)
        self._ranks = context.ranks

    @overload
    def __call__(self, x: torch.Tensor | Quantized, adapters: AdapterRows | None = None) -> torch.Tensor: ...

    @overload
    def __call__(self, x: Input, adapters: AdapterRows | None = None) -> Stream: ...

    def __call__(self, x: Input, adapters: AdapterRows | None = None) -> Stream:
        return summed_(super().__call__(x, adapters), self._ranks)

    @property
    def adds(self) -> bool:
        return False  # the sum over ranks needs the product


def summed_(product: Stream, ranks: RankGroup | None) -> Stream:
    """The sum of all ranks' products, in place (all-reduce); without ranks, the product itself."""
    if ranks is None:
        return product
    if isinstance(product, Traced):
        return product.call("the sum over workers", lambda rows, _: ranks.sum_(rows), product.width)
    return ranks.sum_(product)


def _build(of: LinearParts) -> _Multiplier:
    """Choose the class that multiplies the parts, and register their stored tensors."""
    formats = of.formats
    chosen = _chosen(of, formats)
    if of.context.packed:
        return PackedLinear(of, formats, chosen)
    if not chosen:
        return _plain(of, formats)
    if all(isinstance(format, GGUFFormat) for format in chosen.values()):
        return GGUFLinear(of, {part: format for part, format in chosen.items() if isinstance(format, GGUFFormat)})
    match next(iter(chosen.values())):
        case FP4Format() | GroupedInt8Format() as coded:
            return CodedLinear(of, coded)
        case Int4Format() as int4:
            return Int4Linear(of, int4)
        case FP8Format() | Int8Format() | OnlineFormat() as scaled:
            return ScaledLinear(of, scaled)
        case other:
            raise AssertionError(other)


def _chosen(of: LinearParts, formats: Mapping[str, Format | None]) -> dict[str, Format]:
    """The formats of all parts if each can be multiplied as stored; else empty, and all are expanded."""
    context, outputs = of.context, tuple(of.outputs.values())
    stored = {part: format for part, format in formats.items() if format is not None}
    selections: dict[str, Selection] = {}
    for part, format in stored.items():
        layer = LinearTraits(
            format, context.device, context.dtype, of.inputs, outputs, context.invariant, context.packed
        )
        try:
            selections[part] = select(layer, context.backend)
        except ValueError as error:
            raise WeightError(f"{part}: {error}") from error
    alike = len(set(formats.values())) == 1 or all(isinstance(format, GGUFFormat) for format in formats.values())
    together = alike and all(selection.name != "expanded" for selection in selections.values())
    for part, selection in selections.items():
        if selection.name != "expanded" and not together:
            selection = Selection("expanded", ("a projection that it is fused with is stored otherwise",))
        of.weights.notes[selection.describe(stored[part], context.dtype)] += 1
    return stored if together else {}


def plain_weight(weights: WeightMap, prefix: str, projection: Projection, context: LayerContext) -> torch.Tensor:
    """The weight [outputs, inputs], in the compute dtype, of a projection without bias, for layers that do more with it
    than multiply. Quantised weights are expanded."""
    outputs = {f"{prefix}.{name}": size for name, size in projection.parts}
    of = LinearParts(weights, outputs, projection.inputs, context)
    formats = of.formats
    for part, format in formats.items():
        if isinstance(format, OnlineFormat):
            formats[part] = None
        elif format is not None:
            expanded = Selection("expanded", ("more is done with them than to multiply by them",))
            weights.notes[expanded.describe(format, context.dtype)] += 1
    return _plain(of, formats).weight


def _plain(of: LinearParts, formats: Mapping[str, Format | None]) -> PlainLinear:
    weight = of.context.empty(sum(of.outputs.values()), of.inputs)
    for (part, format), target in zip(formats.items(), weight.split(list(of.outputs.values())), strict=True):
        add_expanded(of.weights, part, target, format)
    return PlainLinear(weight, of.bias, invariant=of.context.invariant)


def add_expanded(weights: WeightMap, part: str, target: torch.Tensor, format: Format | None) -> None:
    """Register a part's matrix, which fills ``target`` [outputs, inputs] with plain values from any format.

    Raises :class:`WeightError` for a format that single matrices do not have.
    """
    if format is None or isinstance(format, GGUFFormat | OnlineFormat):  # the loader expands GGUF blocks
        weights.add(f"{part}.weight", target)
        return
    if isinstance(format, FP4Format) and format.packing == "gpt-oss":
        raise WeightError(f"{part} is stored in {format.name}, which is read of experts alone")
    needed, ignored = endings(format)
    nbytes = target.numel() * target.itemsize
    weights.gather(part, needed, _expander(target, format), nbytes=nbytes, ignored=ignored)


def _expander(target: torch.Tensor, format: PartFormat) -> Callable[[dict[str, torch.Tensor]], None]:
    def place(stored: dict[str, torch.Tensor]) -> None:
        outputs, inputs = target.shape
        target.copy_(expand(format, stored, outputs, inputs, target.dtype))

    return place
