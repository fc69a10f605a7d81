"""Draft heads of a decoder; see :mod:`..model_config.hf.draft_head`."""

from collections.abc import Iterable, Sequence
from typing import Final

import torch

from ..layers.forward_batch import ForwardBatch
from ..layers.layer import Layer
from ..layers.linear.layer_context import LayerContext
from ..layers.linear.linear import Linear
from ..layers.linear.quantized import Delta, multiplied
from ..layers.linear.weights import WeightMap
from ..layers.norm import RMSNorm
from ..layers.rotary import RotaryTables
from ..layers.streams.hyper import HyperConnected
from ..layers.streams.streamed import AnyStreams, StreamedLayer, streamed_layers
from ..model_config.hf.draft_head import DraftHeadSpec
from ..model_config.spec.model import ModelSpec
from .decoder import Decoder

_PASSED_OVER: Final = (
    *("rotary_emb.inv_freq", "t2d", "shared_head.head.weight"),
    *("layers.0.head.weight", "emb.tok_emb.weight"),  # the model's, in DeepSeek V4's files
    "hyper_connection_mixer.block_inject_weight.weight",  # Qwen4's files may have one, which nothing is added by
)


class DraftHead:
    """A draft head, with its own embeddings and output head or the model's. Not compiled to a program."""

    def __init__(
        self, spec: DraftHeadSpec, model: Decoder | ModelSpec, context: LayerContext, max_model_len: int
    ) -> None:
        """``model``: the model that it drafts for; its spec suffices if only shapes are used."""
        own = spec.backbone
        self.spec = spec
        self.weights = WeightMap()
        self.context = context
        self._model = model
        config = model.config if isinstance(model, Decoder) else model
        self._vocab_size = config.vocab_size
        hidden, eps = own.hidden_size, own.norm_eps

        def norm(name: str, size: int) -> RMSNorm:
            return RMSNorm(self.weights, name, size, eps, context, plus_one=own.norm_plus_one)

        def product(name: str, outputs: int, inputs: int, *, bias: bool = False) -> Linear:
            return Linear(self.weights, {name: outputs}, inputs, context, bias=bias)

        self._embedding: torch.Tensor | None = None
        if spec.embeds:
            self._embedding = context.empty(config.vocab_size, hidden)
            self.weights.add("embed_tokens.weight", self._embedding)
        self._embedding_norm = norm("embedding_norm", hidden) if spec.norms else None
        self._hidden_norm: RMSNorm | None = None
        self._normed_size = hidden
        if spec.norms or spec.block:
            self._normed_size = hidden * own.streams.streams if spec.norms_whole and own.streams else hidden
            self._hidden_norm = norm("hidden_norm", self._normed_size)
        self._fc: Linear
        self._embedding_fc: Linear | None = None
        if spec.apart:
            self._fc, self._embedding_fc = product("fc", hidden, hidden), product("embedding_fc", hidden, hidden)
        elif spec.joins:
            embedded = hidden if spec.embeds else spec.hidden_size
            self._fc = product("fc", hidden, embedded + spec.hidden_size, bias=spec.bias)
        else:
            self._fc = product("fc", hidden, len(spec.taps) * spec.hidden_size, bias=spec.bias)
        copies, size = len(spec.taps), spec.hidden_size
        self._taps_norm = norm("input_norm", copies * size) if spec.norms_taps else None
        self._each_norm = [norm(f"fc_norm.{number}", size) for number in range(copies)] if spec.norms_each else []
        self._mask_hidden: torch.Tensor | None = None
        if spec.masks_hidden:
            self._mask_hidden = context.empty(copies * size)
            self.weights.add("mask_hidden", self._mask_hidden)
        rotary = RotaryTables(own.max_position, max_model_len + spec.block, context)
        self._layers: Sequence[Layer | StreamedLayer]
        self._streams: AnyStreams | None = None
        if own.streams is None:
            self._layers = [Layer(self.weights, number, own, rotary, context) for number in range(len(own.layers))]
        else:
            self._streams, self._layers = streamed_layers(self.weights, own, rotary, context)
        self._norm = norm("norm", hidden) if spec.final_norm else None
        self._head: Linear | None = None
        self._offsets: torch.Tensor | None = None
        if spec.vocab_size:
            self._head = product("lm_head", spec.vocab_size, hidden)
        self._before: torch.Tensor | None = None
        if spec.markov_rank:
            self._before = context.empty(config.vocab_size, spec.markov_rank)
            self.weights.add("markov_head.markov_w1.weight", self._before)
            self._next = product("markov_head.markov_w2", spec.vocab_size or config.vocab_size, spec.markov_rank)
            self.weights.pass_over("confidence_head.proj.weight", "confidence_head.proj.bias")
        self._back = product("back", spec.hidden_size, hidden) if spec.projects_back else None
        self._clusters: Linear | None = None
        self._by_cluster: torch.Tensor | None = None
        if spec.clusters:
            self._clusters = product("centroids", spec.clusters, hidden)
            self._by_cluster = context.empty(spec.vocab_size, dtype=torch.int64)
            self.weights.add("token_ordering", self._by_cluster)
        if 0 < spec.vocab_size < config.vocab_size:
            self._offsets = context.empty(spec.vocab_size, dtype=torch.int64)
            self.weights.add("d2t", self._offsets)
        else:
            self.weights.pass_over("d2t")

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the weights from a checkpoint's tensors. Raises :class:`..layers.linear.weights.WeightError`."""
        named = ((self.spec.name_of(name), tensor) for name, tensor in tensors)
        named = ((name, tensor.flatten() if name == "mask_hidden" else tensor) for name, tensor in named)
        passed = _PASSED_OVER if self.spec.embeds else (*_PASSED_OVER, "embed_tokens.weight")
        self.weights.load(named, ignore=passed)

    def features(self, hidden: torch.Tensor, taps: torch.Tensor | None) -> torch.Tensor:
        """The input of :meth:`combined`, [tokens, …] float32: the model's hidden states, or copies of its stream."""
        if self.spec.taps:
            assert taps is not None
            if self.spec.mean_of:
                return taps.float().view(len(taps), len(self.spec.taps), self.spec.mean_of, -1).mean(2).flatten(1)
            return taps.float()
        assert isinstance(self._model, Decoder)
        return hidden.float() if self.spec.takes_stream else self._model.normed(hidden)

    def combined(self, features: torch.Tensor) -> torch.Tensor:
        """The model's input to :meth:`forward`, [tokens, hidden]."""
        x = features.to(self.context.dtype)
        if self.spec.joins:
            return x
        if self._taps_norm is not None:
            x = self._taps_norm.plain(x)
        if self._each_norm:
            parts = x.split(self.spec.hidden_size, dim=1)
            each = zip(self._each_norm, parts, strict=True)
            x = torch.cat([norm.plain(part.contiguous()) for norm, part in each], dim=1)
        return self._fc(x)

    def masks(self) -> torch.Tensor:
        """What :meth:`combined` makes of a mask, [1, hidden], for heads that draft in parallel."""
        assert self._mask_hidden is not None
        return self.combined(self._mask_hidden[None])

    def keep(self, batch: ForwardBatch, features: torch.Tensor) -> None:
        """Write the keys and values of tokens with these features to the batch's cache (what drafts blocks)."""
        assert self._hidden_norm is not None
        x = self._hidden_norm.plain(self.combined(features))
        for layer in self._layers:
            assert isinstance(layer, Layer | HyperConnected), "blocks are drafted over no other streams"
            layer.keep(x, batch)

    def block(self, batch: ForwardBatch) -> torch.Tensor:
        """Run the layers over the blocks ``batch.drafted``; returns their output [tokens, hidden]."""
        embedded = self._embedded(batch)
        if self._streams is None:
            return self._through(None, embedded, batch)
        widened = self._streams.widened(embedded)
        assert isinstance(widened, torch.Tensor)
        found = self._streams.narrowed(self._through(None, widened, batch), batch.carried.mix)
        assert isinstance(found, torch.Tensor)
        return found

    def forward(self, batch: ForwardBatch, hidden: torch.Tensor) -> torch.Tensor:
        """Run the layer; returns its output, and writes keys and values to the batch's cache.

        ``batch`` has the tokens that follow those with the ``hidden`` states, at the positions of the latter. These and
        the output are [tokens, hidden], or [tokens, streams · hidden].
        """
        spec, embedded = self.spec, self._embedded(batch)
        x = hidden.to(embedded.dtype)
        if self._embedding_fc is not None:
            return self._through(None, self._added(self._embedding_fc, embedded, x), batch)
        if self._embedding_norm is not None and self._hidden_norm is not None:
            embedded, normed = self._embedding_norm.plain(embedded), self._hidden_norm.plain(x)
        else:
            normed = x
        both = torch.cat((normed, embedded) if spec.hidden_first else (embedded, normed), dim=1)
        if spec.joins:
            return self._through(None, self._fc(both), batch)
        past = normed if spec.norm_before_residual else x
        return self._through(both, past.clone(), batch)

    def _added(self, embedding_fc: Linear, embedded: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Projections of x [tokens, streams · hidden], each with that of the embedding [tokens, hidden] added."""
        assert self._embedding_norm is not None
        assert self._hidden_norm is not None
        normed = self._hidden_norm.plain(x.view(-1, self._normed_size)).view(-1, embedded.shape[1])
        each = self._fc(normed).float().view(len(x), -1, embedded.shape[1])
        added = embedding_fc(self._embedding_norm.plain(embedded)).float()[:, None]
        return (each + added).flatten(1).to(self.context.stream)

    def _through(self, given: torch.Tensor | None, stream: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """The stream behind all layers, which change it; ``given``: what the first attends with in its place."""
        first, *others = self._layers
        delta: Delta | None
        if isinstance(first, Layer):
            delta, residual = first(None, stream, batch, given)
        else:
            delta, residual = first(None, stream, batch)
        for layer in others:
            delta, residual = layer(delta, residual, batch)
        assert isinstance(residual, torch.Tensor)
        if delta is None:  # a layer that multiplies the sum has added it
            return residual
        added = multiplied(delta)
        assert isinstance(added, torch.Tensor)
        return residual + added

    def fed_back(self, stream: torch.Tensor) -> torch.Tensor:
        """Output of :meth:`forward` → its ``hidden`` input for the tokens behind."""
        x = self._norm.plain(stream) if self.spec.feeds_normed and self._norm is not None else stream
        return x if self._back is None else self._back(x)

    def logits(self, stream: torch.Tensor) -> torch.Tensor:
        """Output of :meth:`forward` → float32 [rows, vocabulary]; -inf for tokens that it cannot draft."""
        if self._streams is not None and not self.spec.block:
            narrowed = self._streams.narrowed(stream)
            assert isinstance(narrowed, torch.Tensor)
            stream = narrowed
        x = stream if self._norm is None else self._norm.plain(stream)
        if self._head is None:
            assert isinstance(self._model, Decoder)
            return self._model.head.of_normed(x)
        logits = self._head(x).float()
        if self._clusters is not None:
            logits = self._of_clusters(x, logits)
        return self._of_all(logits, -torch.inf)

    def transition(self, before: torch.Tensor) -> torch.Tensor:
        """What tokens int64 [rows] add to the logits of those behind them, float32 [rows, vocabulary]."""
        assert self._before is not None
        return self._of_all(self._next(self._before[before]).float(), 0.0)

    def _of_all(self, values: torch.Tensor, others: float) -> torch.Tensor:
        """Values of tokens that it can draft → [rows, vocabulary], with ``others`` for the rest."""
        if self._offsets is None:
            return values
        whole = values.new_full((len(values), self._vocab_size), others)
        ids = self._offsets + torch.arange(len(self._offsets), device=values.device)
        return whole.index_copy_(1, ids, values)

    def _of_clusters(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """The logits of tokens in the clusters that score best for x [rows, hidden]; -inf elsewhere."""
        assert self._clusters is not None
        assert self._by_cluster is not None
        best = self._clusters(x).topk(self.spec.chosen_clusters, dim=-1).indices
        tokens = self._by_cluster.view(self.spec.clusters, -1)[best].flatten(1)
        return torch.full_like(logits, -torch.inf).scatter_(1, tokens, logits.gather(1, tokens))

    def _embedded(self, batch: ForwardBatch) -> torch.Tensor:
        tokens = batch.tokens
        assert isinstance(tokens, torch.Tensor)
        if self._embedding is not None:
            found = self._embedding[tokens]
        else:
            assert isinstance(self._model, Decoder)
            found = self._model.embedded(tokens)
        return found.masked_fill((batch.positions == 0)[:, None], 0) if self.spec.skips_first else found
