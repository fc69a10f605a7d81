"""Stand-ins for tensors that record a model's own forward as a :class:`.program.Program`.

A forward is written once, over operations that take tensors; called with these it records its instructions. Norms and
activations are recorded when their consumer is known, because a product needs its input in its own format.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..activation import ActivationKind
from ..linear_packed import PackedWeight, activation_format_of
from ..low_rank import AdapterSlots
from ..moe import ExpertActivation, Router
from ..norm import layer_norm, rms_norm
from .instruction import NONE, CachedHeads, Rotation, Scores
from .program import Program

PackedProduct = tuple[PackedWeight, int, Tensor | None]
"""A weight, the first column of its outputs, and its bias."""


@dataclass(frozen=True)
class TracedTokens:
    """A stand-in for the ids of a step's tokens."""

    program: Program

    def embed(self, weight: PackedWeight, scale: float, positions: PackedWeight | None = None) -> "Traced":
        """Records the embedding of the ids, times ``scale``, plus that of their positions if ``positions`` are
        given."""
        buffer = self.program.buffer(weight.shape[1])
        self.program.embed(buffer, weight, scale, positions)
        return Traced.written(self.program, buffer)


@dataclass(eq=False)
class Traced:
    """A stand-in for a tensor float32 [tokens, width]: columns of a buffer, and what is yet to be done to them."""

    program: Program
    buffer: int
    width: int
    at: int
    """The number of instructions when it was made: one that writes to its columns later makes it invalid."""
    column: int = 0
    factor: float = 1.0
    norm: tuple[Tensor, float] | None = None
    """Weights and eps of a norm."""
    centred: bool = False
    """The norm is a LayerNorm, else an RMS norm."""
    bias: Tensor | None = None
    """The bias of a LayerNorm."""
    activation: ActivationKind | None = None
    halved: bool = False
    """The columns are gate | up; the activation returns half as many."""

    @classmethod
    def written(cls, program: Program, buffer: int) -> "Traced":
        """Returns a stand-in for a whole buffer, as the instructions so far leave it, or as it was filled before the
        program."""
        return cls(program, buffer, program.widths[buffer], len(program.instructions))

    def __mul__(self, factor: float) -> "Traced":
        return replace(self, factor=self.factor * factor)

    def split_with_sizes(self, sizes: Sequence[int], dim: int = 1) -> "tuple[Traced, ...]":
        """Returns its columns split into parts of these sizes."""
        if dim != 1:
            raise ValueError(f"trace: {dim} is no dimension of columns")
        whole = self.settled()
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        return tuple(
            replace(whole, column=whole.column + start, width=width) for start, width in zip(starts, sizes, strict=True)
        )

    def normed(self, weight: Tensor, eps: float) -> "Traced":
        """Returns x / rms(x) * weight, over all columns."""
        return replace(self.settled(), norm=(weight, eps))

    def normed_each(self, weight: Tensor, eps: float) -> "Traced":
        """Returns x / rms(x) * weight, over each group of as many columns as ``weight`` has, in place."""
        whole = self.settled()
        self.program.norm(whole.buffer, weight, eps, column=whole.column, groups=whole.width // len(weight))
        return replace(whole, at=len(self.program.instructions))

    def layer_normed(self, weight: Tensor, bias: Tensor | None, eps: float) -> "Traced":
        """Returns (x - mean(x)) / deviation(x) * weight + bias, over all columns."""
        return replace(self.settled(), norm=(weight, eps), centred=True, bias=bias)

    def activated(self, activation: ActivationKind) -> "Traced":
        """Returns activation(x)."""
        return replace(self.settled(), activation=activation, halved=False)

    def gated(self, activation: ActivationKind) -> "Traced":
        """Returns activation(gate) * up."""
        whole = self.settled()
        return replace(whole, width=whole.width // 2, activation=activation, halved=True)

    def add_(self, other: "Traced") -> "Traced":
        """Adds the other's columns in place; returns itself."""
        added = replace(other, factor=1.0).settled()
        self.program.add(self._whole(), added._whole(), other.factor)
        self.at = len(self.program.instructions)
        self.program.note_written(self)
        return self

    def linear(self, products: Sequence[PackedProduct]) -> "Traced":
        """Returns its products with several weights, side by side."""
        self._prepare(products[0][0])
        weight, column, _ = products[-1]
        buffer = self.program.buffer(column + weight.shape[0])
        for weight, column, bias in products:
            self.program.linear(buffer, weight, column=column, bias=bias)
        return Traced.written(self.program, buffer)

    def attend(
        self, keys: "Traced", values: "Traced", cache: CachedHeads, rotation: Rotation, scores: Scores
    ) -> "Traced":
        """Returns causal attention over the layer's cache, after writing keys and values to it."""
        qkv = self.beside(keys, values)
        self.program.rotate(qkv.buffer, cache, rotation)
        buffer = self.program.buffer(cache.heads * cache.dim)
        self.program.attend(qkv.buffer, buffer, cache, scores)
        return Traced.written(self.program, buffer)

    def moe(
        self,
        logits: "Traced",
        router: Router,
        gate_up: PackedWeight,
        down: PackedWeight,
        activation: ExpertActivation,
        *,
        score_bias: Tensor | None = None,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        weight_input: bool = False,
    ) -> "Traced":
        """Returns the weighted sum of the experts that the router chooses by its logits.

        See :func:`stentor.kernels.route` (for ``score_bias``) and :func:`stentor.kernels.packed_experts_mlp`.
        """
        scores = logits.settled()
        self._prepare(gate_up)
        buffer = self.program.buffer(gate_up.shape[1])
        self.program.moe(
            scores.buffer,
            buffer,
            router,
            gate_up,
            down,
            activation,
            column=scores.column,
            score_bias=score_bias,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            weight_input=weight_input,
        )
        return Traced.written(self.program, buffer)

    def beside(self, *others: "Traced") -> "Traced":
        """Returns the whole buffer that it and the others make up. Raises ValueError unless they are its columns, in
        order."""
        at = 0
        for part in (self, *others):
            part.settled()
            if part.buffer != self.buffer or part.column != at:
                raise ValueError("trace: what is to be taken together does not lie side by side")
            at += part.width
        return Traced(self.program, self.buffer, at, len(self.program.instructions))

    def call(self, what: str, run: Callable[..., Tensor], width: int, also: "Traced | None" = None) -> "Traced":
        """Returns ``run`` of it, [tokens, width]: an operation that has no instruction.

        ``run`` gets the columns, normed if a norm is pending, those of ``also`` if it is given, and the ``besides`` of
        :meth:`..forward.Forward.run`.
        """
        # A norm in place would change what others see: the residual stream.
        source = replace(self, norm=None).settled()._whole()
        buffer = self.program.buffer(width)
        called = run if self.norm is None else self._after_norm(run, *self.norm)
        self.program.call(source, buffer, what, called, NONE if also is None else also.settled()._whole())
        return Traced.written(self.program, buffer)

    def adapted(self, adapters: AdapterSlots) -> "Traced":
        """Returns it plus the adapters' output. It must be the product that was just recorded."""
        product = self.settled()
        self.program.add_low_rank(product._whole(), adapters)
        return Traced.written(self.program, product.buffer)

    def settled(self) -> "Traced":
        """Returns it with its norm recorded in place; no other consumer may need the columns as they were."""
        self._check_unwritten()
        if self.activation is not None or self.factor != 1.0:
            raise ValueError("trace: an activation or a factor is taken by what has no instruction for it")
        if self.norm is None:
            return self
        weight, eps = self.norm
        self.program.norm(self.buffer, weight, eps, column=self.column, centred=self.centred, bias=self.bias)
        return replace(self, norm=None, centred=False, bias=None, at=len(self.program.instructions))

    def _prepare(self, weight: PackedWeight) -> None:
        """Prepares it as input in the format that ``weight`` takes."""
        wanted = activation_format_of(weight.kind)
        if self.program.is_prepared(self, wanted):
            return
        self._check_unwritten()
        if self.factor != 1.0:
            raise ValueError("trace: a factor is taken by a product, which has no place for it")
        if self.activation is not None:
            self.program.activate(self._whole(), self.activation, wanted, gated=self.halved)
        else:
            norm, eps = self.norm or (None, 0.0)
            self.program.norm_and_quantize(
                self._whole(), wanted, norm=norm, eps=eps, centred=self.centred, bias=self.bias
            )
        self.program.note_prepared(self)

    def _after_norm(self, run: Callable[..., Tensor], weight: Tensor, eps: float) -> Callable[..., Tensor]:
        if not self.centred:
            return lambda columns, *others: run(rms_norm(columns, weight, eps), *others)
        bias = self.bias
        return lambda columns, *others: run(layer_norm(columns, weight, bias, eps), *others)

    @property
    def _columns(self) -> int:
        """The number of columns of its buffer that it covers."""
        return 2 * self.width if self.activation is not None and self.halved else self.width

    def _check_unwritten(self) -> None:
        if self.program.written_since(self.at, self.buffer, self.column, self._columns):
            raise ValueError("trace: a value is taken after its place has been written again")

    def _whole(self) -> int:
        """Returns the number of its buffer; it must be all of it."""
        if self.column or self._columns != self.program.widths[self.buffer]:
            raise ValueError("trace: some columns of a buffer are taken where all are expected")
        return self.buffer
