"""RMSNorm (arXiv:1910.07467), fused with the residual addition and with the next layer's quantisation; LayerNorm
(arXiv:1607.06450); RMSNorm with a gate of low rank."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, overload

import torch
from msgspec.structs import replace

from stentor import kernels
from stentor.kernels.forward import Traced

from ..model_config.spec.layer import Norms
from ..model_config.spec.model import Backbone
from .elementwise import elementwise
from .linear.layer_context import LayerContext
from .linear.linear import Linear
from .linear.quantized import Delta, Input, Stream, Unadded, Unnormed, multiplied
from .linear.weights import WeightMap

_NOT_COMPUTED: Final = (Unadded, Traced)


class RMSNorm:
    """x / rms(x) * weight, or * (1 + weight) with ``plus_one``.

    ``before``: the layer that takes the result, which is quantised for it in the same pass.
    """

    def __init__(
        self,
        weights: WeightMap,
        name: str | None,
        size: int,
        eps: float,
        context: LayerContext,
        *,
        plus_one: bool = False,
        before: Linear | None = None,
    ) -> None:
        """Without a ``name`` there are no weights."""
        self.weight = context.empty(size)
        self._eps = eps
        self._plus_one = plus_one
        self._before = before
        self._scheme = before.input_scheme if before else None
        self._scale = before.input_scale if before else None
        if name is not None:
            weights.add(f"{name}.weight", self.weight)
        elif not context.filled:
            self.weight.fill_(0.0 if plus_one else 1.0)

    @property
    def factors(self) -> torch.Tensor:
        """The factors for a program, float32 [size]."""
        return self.weight.float() + 1 if self._plus_one else self.weight.float()

    @overload
    def plain(self, x: torch.Tensor) -> torch.Tensor: ...

    @overload
    def plain(self, x: Traced) -> Traced: ...

    def plain(self, x: Stream) -> Stream:
        """Normalise the last dimension of x, without quantising."""
        if isinstance(x, Traced):
            return x.normed(self.factors, self._eps)
        return kernels.rms_norm(x, self.weight, self._eps, plus_one=self._plus_one)

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension of x, of any dtype, in float32."""
        return kernels.rms_norm(x.float(), self.factors, self._eps)

    def __call__(self, x: Stream) -> Input:
        """x [tokens, size] → the input of the next layer."""
        if self._before is not None and not isinstance(x, Traced) and x.shape[0] == 1 and self._before.takes_norm(x):
            return self._unnormed(x, self._before)
        if self._scheme is None or isinstance(x, Traced):
            return self.plain(x)
        return kernels.rms_norm_quantized(x, self.weight, self._eps, self._scheme, self._scale, plus_one=self._plus_one)

    def add(self, x: Delta, residual: Stream) -> Input:
        """Add x [tokens, size] to ``residual`` in place and normalise the sum; an :class:`Unnormed` sum of one row is a
        new tensor."""
        if isinstance(x, _NOT_COMPUTED) or isinstance(residual, Traced):
            return self._add_later(x, residual)
        if self._before is not None and x.shape[0] == 1 and self._before.takes_norm(x) and x.dtype == residual.dtype:
            return self._unnormed(x, self._before, residual=residual)
        if self._scheme is None:
            return kernels.add_rms_norm(x, residual, self.weight, self._eps, plus_one=self._plus_one)
        return kernels.add_rms_norm_quantized(
            x, residual, self.weight, self._eps, self._scheme, self._scale, plus_one=self._plus_one
        )

    def _add_later(self, x: Delta, residual: Stream) -> Input:
        """As :meth:`add`, for a product x that may not be computed yet."""
        if isinstance(residual, Traced) or not isinstance(x, Unadded):
            return self.plain(added_(residual, x))
        before = self._before
        if before is not None and before.takes_norm(residual, squared=True):
            return self._unnormed(residual, before, squares=x.add_(residual))
        return self.add(x.product(), residual)

    def _unnormed(
        self,
        x: torch.Tensor,
        before: Linear,
        *,
        residual: torch.Tensor | None = None,
        squares: torch.Tensor | None = None,
    ) -> Unnormed:
        return Unnormed(x, residual, self.weight, self._eps, plus_one=self._plus_one, gate=before.gate, squares=squares)


def added_(residual: Stream, delta: Delta) -> Stream:
    """Add ``delta`` to ``residual`` in place; returns ``residual``."""
    return residual.add_(multiplied(delta))  # type: ignore[arg-type]  # both are of one kind


class LayerNorm:
    """(x - mean) / deviation * weight + bias, or * (1 + weight) with ``plus_one``."""

    def __init__(
        self,
        weights: WeightMap,
        name: str | None,
        size: int,
        eps: float,
        context: LayerContext,
        *,
        bias: bool = True,
        plus_one: bool = False,
    ) -> None:
        """Without ``bias`` it is zero; without a ``name`` there are no weights either."""
        self._weight, self._bias = (context.empty(size, dtype=context.stream) for _ in range(2))
        self._eps, self._biased, self._plus_one = eps, bias, plus_one
        if name is not None:
            weights.add(f"{name}.weight", self._weight)
        elif not context.filled:
            self._weight.fill_(0.0 if plus_one else 1.0)
        if bias:
            weights.add(f"{name}.bias", self._bias)
        elif not context.filled:
            self._bias.zero_()

    @property
    def _factors(self) -> torch.Tensor:
        return self._weight + 1 if self._plus_one else self._weight

    @overload
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    @overload
    def __call__(self, x: Stream) -> Stream: ...

    def __call__(self, x: Stream) -> Stream:
        """Normalise the last dimension of x."""
        if isinstance(x, Traced):
            bias = self._bias.float() if self._biased else None
            return x.layer_normed(self._factors.float(), bias, self._eps)
        return kernels.layer_norm(x, self._factors, self._bias, self._eps)

    plain = __call__

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension of x, of any dtype, in float32."""
        return kernels.layer_norm(x.float(), self._factors.float(), self._bias.float(), self._eps)

    def add(self, x: Delta, residual: Stream) -> Stream:
        """Add x to ``residual`` in place and normalise the sum."""
        x = multiplied(x)
        if isinstance(x, Traced) or isinstance(residual, Traced):
            return self.plain(added_(residual, x))
        return kernels.add_layer_norm(x, residual, self._factors, self._bias, self._eps)


class Unnormalised:
    """The place of the last norm, in a model whose head takes the stream as it is."""

    def plain(self, x: Stream) -> Stream:
        """x"""
        return x

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """x in float32"""
        return x.float()


class GatedNorm:
    """An RMS norm whose output y is multiplied by sigmoid(up(silu(down(y)))) (A.X K2).

    The gate's products are float32 in any compute dtype, and not quantised while loading: they are small.
    """

    def __init__(self, weights: WeightMap, name: str, like: Norms, model: Backbone, context: LayerContext) -> None:
        size, (prefix, _, own) = model.hidden_size, name.rpartition(".")
        inner = replace(context, dtype=context.stream)
        self._norm = RMSNorm(weights, f"{name}.norm", size, model.norm_eps, inner, plus_one=model.norm_plus_one)
        self._down, self._up = (
            Linear.of(weights, prefix, product, context.exact(f"{prefix}.{product.parts[0][0]}"))
            for product in like.gate_of(own, size)
        )
        self._size = size

    @overload
    def plain(self, x: torch.Tensor) -> torch.Tensor: ...

    @overload
    def plain(self, x: Stream) -> Stream: ...

    def plain(self, x: Stream) -> Stream:
        """x [tokens, size] → the same."""
        normed = self._norm.plain(x)
        if isinstance(normed, Traced):
            return normed.call("a norm with a gate", self._opened, self._size)
        return self._opened(normed)

    __call__ = plain

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """As :meth:`plain`, in float32, for x of any dtype."""
        return self._opened(self._norm.exact(x))

    def add(self, x: Delta, residual: Stream) -> Stream:
        """Add x to ``residual`` in place and normalise the sum."""
        return self.plain(added_(residual, x))

    def _opened(self, y: torch.Tensor, _batch: object = None) -> torch.Tensor:
        """The norm's output, times its gate."""
        low = self._down(y.float())
        assert isinstance(low, torch.Tensor)
        gate = self._up(elementwise(torch.nn.functional.silu, low))
        assert isinstance(gate, torch.Tensor)
        return y * elementwise(torch.sigmoid, gate).to(y.dtype)


class _ExactNorm(ABC):
    """A norm that is computed in float32; the program of a CPU calls it."""

    _called: str
    """Name of the call."""
    _size: int

    @abstractmethod
    def exact(self, x: torch.Tensor) -> torch.Tensor:
        """As :meth:`plain`, in float32, for x of any dtype."""

    @overload
    def plain(self, x: torch.Tensor) -> torch.Tensor: ...

    @overload
    def plain(self, x: Stream) -> Stream: ...

    def plain(self, x: Stream) -> Stream:
        """x [tokens, size] → the same."""
        if isinstance(x, Traced):
            return x.call(self._called, lambda rows, _: self.exact(rows), self._size)
        return self._rounded(self.exact(x), x)

    __call__ = plain

    def add(self, x: Delta, residual: Stream) -> Stream:
        """Add x to ``residual`` in place and normalise the sum."""
        return self.plain(added_(residual, x))

    def _rounded(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The norm of ``like``, float32, as :meth:`plain` returns it."""
        return x.to(like.dtype)


class ScaledFirstNorm(_ExactNorm):
    """y / rms(y) of y = x * (1 + weight) (Muse Spark)."""

    _called = "a norm of scaled outputs"

    def __init__(self, weights: WeightMap, name: str, size: int, eps: float, context: LayerContext) -> None:
        self._scale = context.empty(size, dtype=torch.float32)
        weights.add(f"{name}.weight", self._scale)
        self._norm = RMSNorm(weights, None, size, eps, replace(context, dtype=torch.float32))
        self._size = size

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm.plain(x.float() * (1 + self._scale))


class GroupsNorm(_ExactNorm):
    """y · weight, where y is x with each of its equal parts divided by its own rms (K2 Horizon)."""

    _called = "a norm of groups"

    def __init__(
        self, weights: WeightMap, name: str, size: int, groups: int, eps: float, context: LayerContext
    ) -> None:
        self._weight = context.empty(size, dtype=torch.float32)
        weights.add(f"{name}.weight", self._weight)
        self._norm = RMSNorm(weights, None, size // groups, eps, replace(context, dtype=torch.float32))
        self._size, self._groups = size, groups

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm.plain(x.float().reshape(-1, self._size // self._groups)).view(x.shape) * self._weight


class RoundedNorm(_ExactNorm):
    """An RMS norm of a float32 stream, whose result is rounded for the parts of the layer."""

    _called = "a norm of a float32 stream"

    def __init__(self, norm: RMSNorm, size: int, dtype: torch.dtype) -> None:
        self._norm, self._size, self._dtype = norm, size, dtype

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        return self._norm.exact(x)

    def _rounded(self, x: torch.Tensor, _like: torch.Tensor) -> torch.Tensor:
        return x.to(self._dtype)


class NormsApart(_ExactNorm):
    """Several inputs side by side, each with a norm of its own (Inkling 2), or all with one (Inkling 2 Mini)."""

    _called = "norms of several inputs"

    def __init__(self, norms: Sequence[RMSNorm], size: int) -> None:
        """``size``: of one input."""
        self._norms, self._each, self._size = norms, size, len(norms) * size

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        inputs = (part.contiguous() for part in x.split(self._each, dim=1))
        return torch.cat([norm.exact(part) for norm, part in zip(self._norms, inputs, strict=True)], dim=1)


Norm = RMSNorm | LayerNorm | GatedNorm | ScaledFirstNorm | GroupsNorm | RoundedNorm | NormsApart


def make_norm(
    weights: WeightMap,
    name: str,
    like: Norms,
    model: Backbone,
    context: LayerContext,
    before: Linear | None = None,
) -> Norm:
    """A norm of hidden states of the kind of ``like``, stored as ``name``; ``before``: see :class:`RMSNorm`."""
    own = name.rpartition(".")[2]
    if own in like.gated:
        return GatedNorm(weights, name, like, model, context)
    size, eps, plus_one = model.hidden_size, model.norm_eps, model.norm_plus_one
    if like.inputs and own == like.mixer_in:
        exact = replace(context, dtype=torch.float32)
        stored_names = [name.format(each) for each in like.inputs]
        norms = {each: RMSNorm(weights, each, size, eps, exact) for each in dict.fromkeys(stored_names)}
        return NormsApart([norms[each] for each in stored_names], size)
    if like.out_eps and own in (like.mixer_out, like.mlp_out):
        eps = like.out_eps
    elif like.in_eps and own in (like.mixer_in, like.mlp_in):
        eps = like.in_eps
    if own in like.scaled_first:
        return ScaledFirstNorm(weights, name, size, eps, context)
    if like.groups > 1:
        return GroupsNorm(weights, name, size, like.groups, eps, context)
    stored = name if like.weighted and own not in like.unweighted else None
    if stored:
        weights.alias(f"{name}.scale", f"{name}.weight")  # as files of Grok 1 have it
    if (offset := dict(like.offsets).get(own)) is not None:
        plus_one = False
        if offset:
            weights.arrange(f"{name}.weight", (size,), lambda weight: weight.float() + offset)
    if like.kind == "layer":
        return LayerNorm(weights, stored, size, eps, context, bias=like.bias, plus_one=plus_one)
    inner = replace(context, dtype=context.stream)
    if context.float32_stream and not context.packed:
        return RoundedNorm(RMSNorm(weights, stored, size, eps, inner, plus_one=plus_one), size, context.dtype)
    return RMSNorm(weights, stored, size, eps, inner, plus_one=plus_one, before=before)


def joined(delta: Delta | None, residual: Stream, norm: Norm | None) -> Input:
    """Add ``delta`` to the stream in place and return the next part's input. If that is :class:`Unnormed`, it has the
    stream."""
    if norm is None:
        return residual if delta is None else added_(residual, delta)
    return norm(residual) if delta is None else norm.add(delta, residual)


def normed_columns(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix with each column divided by its length, which is never 0."""
    lengths: torch.Tensor = torch.linalg.vector_norm(matrix, dim=0, dtype=torch.float32)
    return matrix / (lengths + 1e-7)
