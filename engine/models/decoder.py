"""The dense decoder family: Llama, Mistral, Qwen2, Qwen3, Phi-3, Gemma-1/2/3, OLMo-2, Granite.

They differ by :class:`ModelSpec`, not by code: where norms stand, which projections carry biases,
how queries and keys are normed, and a handful of scalar factors.
"""

from collections.abc import Callable, Iterable, Sequence

import torch

from stentor import kernels
from stentor.kernels.forward import NONE, Program

from ..layers.attention import Attention, Buffers, LayerCache
from ..layers.layer_context import LayerContext
from ..layers.linear import Linear, PlainLinear
from ..layers.norm import RMSNorm
from ..layers.packed import PackedTable
from ..layers.quantized import Input
from ..layers.rotary import RotaryTables
from ..layers.weights import WeightMap
from ..model_config.model_spec import MLPSpec, ModelSpec
from .programs import Programs
from .varlen_batch import VarlenBatch


class MLP:
    """down(act(gate(x)) * up(x))."""

    def __init__(self, weights: WeightMap, prefix: str, spec: MLPSpec, hidden: int, context: LayerContext) -> None:
        into, out = spec.projections(hidden)
        self._gate_up = Linear.of(weights, prefix, into, context)
        self._down = Linear.of(weights, prefix, out, context)
        self._activation = spec.activation

    @property
    def input_projection(self) -> Linear:
        """Where the input goes first."""
        return self._gate_up

    def __call__(self, x: Input) -> torch.Tensor:
        gate_up, scheme = self._gate_up(x), self._down.input_scheme
        if scheme is None:
            return self._down(kernels.gated_activation(gate_up, self._activation))
        return self._down(kernels.gated_activation_quantized(gate_up, self._activation, scheme, self._down.input_scale))

    def record(self, program: Program, buffers: Buffers) -> None:
        """Appends to ``program``, after its input has been prepared, what leads to ``buffers.delta``."""
        self._gate_up.packed.record(program, buffers.gate_up)
        program.activate(buffers.gate_up, self._activation, self._down.packed.activation_format)
        self._down.packed.record(program, buffers.delta)


class Block:
    """One layer. ``residual`` is the stream [tokens, hidden]; ``delta`` what the last part adds to it."""

    def __init__(
        self, weights: WeightMap, layer: int, model: ModelSpec, rotary: RotaryTables, context: LayerContext
    ) -> None:
        prefix, spec = f"model.layers.{layer}", model.layers[layer]
        self._attention = Attention(weights, layer, model, rotary, context)
        self._mlp = MLP(weights, prefix, spec.mlp, model.hidden_size, context)
        self._scale = model.residual_scale

        def norm(name: str, before: Linear | None = None) -> RMSNorm | None:
            if not name:
                return None
            return RMSNorm(
                weights,
                f"{prefix}.{name}",
                model.hidden_size,
                model.norm_eps,
                context,
                plus_one=model.norm_plus_one,
                before=before,
            )

        self._attention_in = norm(spec.norms.mixer_in, self._attention.input_projection)
        self._attention_out = norm(spec.norms.mixer_out)
        self._mlp_in = norm(spec.norms.mlp_in, self._mlp.input_projection)
        self._mlp_out = norm(spec.norms.mlp_out)

    def __call__(
        self,
        delta: torch.Tensor | None,
        residual: torch.Tensor,
        positions: torch.Tensor,
        cache: LayerCache,
        batch: kernels.AttentionBatch,
    ) -> torch.Tensor:
        """Mutates ``residual``; returns the MLP's delta, not yet added."""
        x = self._attention(_join(delta, residual, self._attention_in), positions, cache, batch)
        return self._feed_forward(x, residual)

    def forward_bidirectional(
        self,
        delta: torch.Tensor | None,
        residual: torch.Tensor,
        positions: torch.Tensor,
        cu_seqlens: torch.Tensor,
        max_seqlen: int,
    ) -> torch.Tensor:
        """As a call, with attention in both directions: see :meth:`Attention.forward_bidirectional`."""
        x = self._attention.forward_bidirectional(
            _join(delta, residual, self._attention_in), positions, cu_seqlens, max_seqlen
        )
        return self._feed_forward(x, residual)

    def _feed_forward(self, attended: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x = self._mlp(_join(self._scaled(attended, self._attention_out), residual, self._mlp_in))
        return self._scaled(x, self._mlp_out)

    def record(self, program: Program, buffers: Buffers, *, first: bool) -> None:
        """Appends the layer to ``program``. The delta of the layer before, unless this is the first, is added here."""
        self._record_join(program, buffers, self._attention_in, self._attention.input_projection, first=first)
        self._attention.record(program, buffers)
        self._record_norm(program, buffers, self._attention_out)
        self._record_join(program, buffers, self._mlp_in, self._mlp.input_projection)
        self._mlp.record(program, buffers)
        self._record_norm(program, buffers, self._mlp_out)

    def _record_join(
        self, program: Program, buffers: Buffers, norm: RMSNorm | None, input_projection: Linear, *, first: bool = False
    ) -> None:
        program.norm_and_quantize(
            buffers.residual,
            input_projection.packed.activation_format,
            add=NONE if first else buffers.delta,
            scale=self._scale,
            norm=None if norm is None else norm.factors,
            eps=0.0 if norm is None else norm.eps,
        )

    def _record_norm(self, program: Program, buffers: Buffers, norm: RMSNorm | None) -> None:
        if norm is not None:
            program.norm(buffers.delta, norm.factors, norm.eps)

    def _scaled(self, delta: torch.Tensor, norm: RMSNorm | None) -> torch.Tensor:
        if norm is not None:
            delta = norm.plain(delta)
        return delta if self._scale == 1.0 else delta * self._scale


def _join(delta: torch.Tensor | None, residual: torch.Tensor, norm: RMSNorm | None) -> Input:
    """Adds ``delta`` to the stream in place and gives the next part its input."""
    if norm is None:
        return residual if delta is None else residual.add_(delta)
    return norm(residual) if delta is None else norm.add(delta, residual)


class Decoder:
    """Token ids in, hidden states and logits out; K and V go to the caller's paged cache.

    Where weights are packed for a CPU, the whole pass is one call (:mod:`.programs`); elsewhere, and over
    a cache of another dtype than the activations', it is one a part.
    """

    def __init__(self, config: ModelSpec, context: LayerContext, max_model_len: int) -> None:
        self.config = config
        self.weights = WeightMap()
        self._context = context
        self._embedding = self._table(context)
        rotary = RotaryTables(config.max_position, max_model_len, context)
        self._blocks = [Block(self.weights, layer, config, rotary, context) for layer in range(len(config.layers))]
        self._norm = RMSNorm(
            self.weights, "model.norm", config.hidden_size, config.norm_eps, context, plus_one=config.norm_plus_one
        )
        self._head: Linear | PlainLinear | PackedTable
        if not config.tie_embeddings:
            self._head = Linear(self.weights, {"lm_head": config.vocab_size}, config.hidden_size, context)
        elif isinstance(self._embedding, PackedTable):
            self._head = self._embedding
        else:
            self._head = PlainLinear(self._embedding, None, invariant=context.invariant)
        # transformers rounds the factor to the model's dtype before multiplying
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=context.dtype).item()
        self._programs: Programs | None = None

    def _table(self, context: LayerContext) -> torch.Tensor | PackedTable:
        part, rows, columns = "model.embed_tokens", self.config.vocab_size, self.config.hidden_size
        if context.packed:
            return PackedTable(self.weights, part, rows, columns, context)
        table = context.empty(rows, columns)
        self.weights.add(f"{part}.weight", table)
        return table

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fills the weights from a checkpoint's tensors; what carries nothing may be there: buffers, and the head's
        copy where it is tied. Raises :class:`..layers.weights.WeightError`."""
        tied = ("lm_head.weight",) if self.config.tie_embeddings else ()
        self.weights.load(tensors, ignore=("rotary_emb.inv_freq", *tied))

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[LayerCache],
        batch: kernels.AttentionBatch,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """tokens and positions int64 [tokens] → final hidden states [tokens, hidden], before the last norm.

        ``added`` [tokens, hidden] is added to the tokens' embeddings; packed weights take none.

        The sum is returned un-normed so that only the rows that need logits pay for the norm. Of packed weights it
        is float32, and good until the next pass.
        """
        if (programs := self.programs(caches)) is not None:
            if added is not None:
                raise ValueError("packed weights embed tokens alone: nothing can be added")
            return programs.hidden(tokens, positions, batch)
        residual = self._embedded(tokens)
        if added is not None:
            residual = residual + added
        delta = None
        for block, cache in zip(self._blocks, caches, strict=True):
            delta = block(delta, residual, positions, cache, batch)
        return residual if delta is None else residual.add_(delta)

    def encode(
        self, tokens: torch.Tensor, varlen: VarlenBatch, after_layer: Callable[[], None] | None = None
    ) -> torch.Tensor:
        """tokens int64 [tokens] of all texts → hidden states [tokens, hidden] behind the last norm, where tokens see
        each other in both directions; ``after_layer`` is called after every layer."""
        cu_seqlens, positions = varlen.to(tokens.device)
        residual, delta = self._embedded(tokens), None
        for block in self._blocks:
            delta = block.forward_bidirectional(delta, residual, positions, cu_seqlens, varlen.max_seqlen)
            if after_layer is not None:
                after_layer()
        return self.normed(residual if delta is None else residual.add_(delta))

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        if isinstance(self._embedding, PackedTable):
            return (self._embedding.rows(tokens) * self._embedding_scale).to(self._context.dtype)
        return kernels.embedding(tokens, self._embedding, self._embedding_scale)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary], in ``out`` if given.

        Without ``out`` they may be good until the next call only.
        """
        if self._programs is not None:
            logits = self._programs.logits(hidden)
            logits = logits if out is None else out.copy_(logits)
        else:
            product = self._head(self._norm.plain(hidden))
            logits = product.float() if out is None else out.copy_(product)
        return self.finished(logits)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → what the head would get, not rounded: float32."""
        return self._norm.exact(hidden)

    def programs(self, caches: Sequence[LayerCache]) -> Programs | None:
        """The pass over these caches as programs, where it can be one: made when they are first seen."""
        if not isinstance(self._embedding, PackedTable) or caches[0].k.dtype != self._context.dtype:
            return None
        if self._programs is None or not self._programs.over(caches):
            self._programs = self._record(self._embedding, caches)
        return self._programs

    @property
    def finishes(self) -> bool:
        """Whether :meth:`finished` changes anything."""
        return self.config.logits_divisor != 1.0 or bool(self.config.logits_softcap)

    def finished(self, logits: torch.Tensor) -> torch.Tensor:
        """Scaled and capped in place, as the model asks."""
        if self.config.logits_divisor != 1.0:
            logits.div_(self.config.logits_divisor)
        if self.config.logits_softcap:
            cap = self.config.logits_softcap
            logits.div_(cap).tanh_().mul_(cap)
        return logits

    def _record(self, table: PackedTable, caches: Sequence[LayerCache]) -> Programs:
        config, body, head = self.config, Program(), Program()
        buffers = Buffers(
            residual=body.buffer(config.hidden_size),
            delta=body.buffer(config.hidden_size),
            qkv=body.buffer(max(layer.mixer.q_size + 2 * layer.mixer.kv_size for layer in config.layers)),
            attended=body.buffer(max(layer.mixer.q_size for layer in config.layers)),
            gate_up=body.buffer(max(2 * layer.mlp.inner for layer in config.layers)),
        )
        body.embed(buffers.residual, table.weight, self._embedding_scale)
        for layer, block in enumerate(self._blocks):
            block.record(body, buffers, first=layer == 0)
        if self._blocks:
            body.add(buffers.residual, buffers.delta, config.residual_scale)
        packed = self._head.packed if isinstance(self._head, Linear) else self._head
        assert not isinstance(packed, PlainLinear)
        hidden, logits = head.buffer(config.hidden_size), head.buffer(config.vocab_size)
        head.norm_and_quantize(hidden, packed.activation_format, norm=self._norm.factors, eps=self._norm.eps)
        packed.record(head, logits)
        return Programs(body, head, buffers.residual, hidden, logits, caches)
