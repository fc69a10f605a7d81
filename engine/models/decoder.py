"""Decoders: Llama and those that came after it, dense and of experts.

They differ by :class:`ModelSpec`, not by code: where norms stand and of what kind they are, which projections carry
biases, how queries and keys are normed and rotated, and a handful of scalar factors.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from stentor.kernels.forward import Program, Traced, TracedTokens

from ..layers.elementwise import between
from ..layers.forward_batch import ForwardBatch, LayerCache, MediaBatch, StateBatch, Taps
from ..layers.layer import Layer
from ..layers.linear.adapters import NOBODY, AdapterRows
from ..layers.linear.layer_context import LayerContext
from ..layers.linear.packed import PackedTable
from ..layers.linear.quantized import Delta, Stream
from ..layers.linear.weights import WeightMap
from ..layers.norm import added_
from ..layers.per_layer import PerLayerInputs
from ..layers.picture_layer import PictureLayer
from ..layers.rotary import RotaryTables
from ..layers.shared_block import SharedWeights
from ..layers.stored_parts import as_divided
from ..layers.streams.streamed import AnyStreams, StreamedLayer, streamed_layers
from ..model_config.spec.attention import AttentionSpec
from ..model_config.spec.model import HEADS, ModelSpec
from .head import Head
from .input_embedding import changed, decoder_input
from .programs import Body, Programs


class Decoder:
    """Token ids in, hidden states and logits out; K and V go to the caller's paged cache.

    Where weights are packed for a CPU, the whole pass is one call (:mod:`.programs`); elsewhere it is one a part.
    """

    def __init__(
        self,
        config: ModelSpec,
        context: LayerContext,
        max_model_len: int,
        *,
        media_tokens: int = 0,
        media_layers: Sequence[int] = (),
    ) -> None:
        """``media_tokens``: how many tokens of media a pass may have, ``media_layers``: behind which layers something
        is added to the stream of these."""
        self.config = config
        self.weights = WeightMap(context.part)
        self.context = context
        if context.adapters is not None:
            context.adapters.begin(config, context.part)
        self._stage_ends = {} if context.part is None else context.part.stage_ends
        self._widens = config.float32_stream and not context.packed
        """Whether layers get embeddings in float32."""
        over_stream = replace(context, float32_stream=True) if self._widens else context
        of_layers = replace(over_stream, ranks=None) if self._stage_ends else over_stream
        self._embedding = decoder_input(self.weights, config, context)
        self._rotary = RotaryTables(config.max_position, max_model_len, context, media_tokens, self.weights)
        for rope, dim in config.learned_ropes:
            self._rotary.of(rope, dim)
        sees_whole = any(isinstance(each.mixer, AttentionSpec) and each.mixer.whole_spans for each in config.layers)
        self._media = MediaBatch(media_layers, sees_whole)
        self._bodies: dict[tuple[bool, bool, bool, tuple[int, ...]], Body] = {}
        """Of passes in which some tokens are media, some rows have adapters, some of these change embeddings, or the
        stream is taken on the way."""
        inputs: PerLayerInputs | None = None
        if config.per_layer is not None:
            inputs = PerLayerInputs(self.weights, config.per_layer, config, self.embedded, context)
        self._layers: Sequence[Layer | PictureLayer | StreamedLayer]
        self._streams: AnyStreams | None = None
        if config.streams is None:
            self._layers = self._over_one_stream(of_layers, inputs)
        else:
            self._streams, self._layers = streamed_layers(self.weights, config, self._rotary, context, inputs)
        self.head = Head(self.weights, config, over_stream, self._embedding.words)
        self._blended = {number for blend in config.blends for number in (blend.source, blend.layer)}
        self._start: torch.Tensor | None = None
        if config.start:
            self._start = context.empty(config.hidden_size, dtype=torch.float32)
            self.weights.add(config.start, self._start)
        self._programs: Programs | None = None

    def _over_one_stream(self, context: LayerContext, inputs: PerLayerInputs | None) -> list[Layer | PictureLayer]:
        """``context``: that of layers over a single stream."""
        config, rotary = self.config, self._rotary
        blocks: dict[int, SharedWeights] = {}
        stored: dict[int, Layer | PictureLayer] = {}
        layers: list[Layer | PictureLayer] = []
        for at in range(len(config.layers)):
            if (earlier := stored.get(config.stored(at))) is not None:
                layers.append(self._again(earlier, at, context))
                continue
            layers.append(
                Layer(self.weights, at, config, rotary, context, inputs, blocks=blocks)
                if config.layers[at].picture_gates is None
                else PictureLayer(self.weights, at, config, self.context)
            )
            stored[config.stored(at)] = layers[-1]
        return layers

    def _again(self, layer: Layer | PictureLayer, at: int, context: LayerContext) -> Layer:
        """The layer that runs again, numbered ``at``."""
        assert isinstance(layer, Layer), "layers of pictures do not loop"
        return layer.again(self.weights, at, self.config, self._rotary, context)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fills the weights from a checkpoint's tensors. Ignores buffers that hold no weights, and the stored copy of a
        tied head. Raises :class:`..layers.linear.weights.WeightError`."""
        tied = HEADS[:1] if self.config.tie_embeddings else ()
        if tied and self.config.head_bias:  # which is read where the embedding is
            tensors, tied = (each for each in tensors if each[0] not in HEADS), ()
        self.weights.pass_over(*self.config.unused)
        self.weights.load(self.own(tensors), ignore=("rotary_emb.inv_freq", *tied))

    def own(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors without those of heads that draft, under this decoder's names."""
        first, prefix = len(self.config.layers), self.config.prefix
        apart = self.config.mtp is not None and self.config.mtp.prefix
        drafts = () if apart else tuple(f"{prefix}.{first + layer}." for layer in range(self.config.draft_layers))
        if self.config.draft_prefix:
            drafts += (self.config.draft_prefix,)
        own = ((name, tensor) for name, tensor in tensors if not name.startswith(drafts)) if drafts else tensors
        return as_divided(self.config, self._with_base(own))

    def _with_base(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors under this decoder's names, whose first part files may leave out (GPT-2, DeepSeek-V4), or call
        ``model`` (Nemotron Puzzle)."""
        config = self.config
        if "." not in config.prefix:
            yield from ((name.removeprefix("model."), tensor) for name, tensor in tensors)
            return
        base = f"{config.prefix.partition('.')[0]}."
        parts = [config.embedding, config.input.positions, config.prefix, config.final_norm, config.input.norm or ""]
        if config.per_layer is not None:
            parts += [name for name, _ in config.per_layer.outer_shapes(len(config.layers), config.hidden_size)]
        inner = {part.removeprefix(base).partition(".")[0] for part in parts if part.startswith(base)}
        for name, tensor in tensors:
            plain = name.removeprefix("model.")
            yield (f"{base}{plain}" if plain.partition(".")[0] in inner else name), tensor

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Final hidden states [tokens, hidden], before the last norm; keys and values go to the batch's caches, where
        it has any.

        The sum is returned un-normed so that only the rows that need logits pay for the norm. Over caches it is float32
        where weights are packed, and good until the next pass.
        """
        if batch.texts is None and (programs := self.programs(batch.caches)) is not None:
            rows = batch.adapter_rows
            recorded = rows is None or (programs.adapts and not self._embedding.adds_words(rows))
            if batch.media is None and batch.taps is None and recorded:
                return programs.hidden(batch)
            return self._body_for(batch).hidden(batch)
        if batch.texts is not None and (states := self.config.states):
            batch = replace(batch, states=StateBatch.of_whole(batch.texts, states, self.context.dtype))
        if batch.texts is not None and batch.tasks:
            lengths = batch.texts.varlen.lengths
            batch = replace(batch, adapter_rows=AdapterRows.of(batch.tasks, lengths, self.context.device))
        hidden = self._hidden(batch, adds_words=self._embedding.adds_words(batch.adapter_rows))
        assert isinstance(hidden, torch.Tensor)
        return hidden

    def adapted_beside(self, slots: Iterable[int]) -> bool:
        """Whether an adapter in one of these slots changes what no program computes: embeddings, or the head."""
        slots = {*slots}
        return self._embedding.adapted_in(slots) or self.head.adapted_in(slots)

    def _hidden(self, batch: ForwardBatch, *, adds_words: bool = False) -> Stream:
        """The pass up to the last layer, over tensors or :class:`Traced` values."""
        residual, delta = self._embedding(batch, adds_words=adds_words), None
        if self._widens:
            assert isinstance(residual, torch.Tensor)
            residual = residual.float()
        if any(layer.block is not None for layer in self.config.layers):
            batch.carried.words = changed(residual, "embeddings kept", lambda x, _: x.clone(), batch)
        if self._streams is not None:
            residual = self._streams.widened(residual)
        media = batch.media
        tapped = () if batch.taps is None else batch.taps.layers
        for number, layer in enumerate(self._layers):
            if number in tapped:
                delta, residual = None, changed(_summed(delta, residual), "a stream for drafts", _take, batch)
            if number in self.config.normed_before:
                delta, residual = None, self._between_loops(_summed(delta, residual))
            if number in self._blended:
                delta, residual = None, self._blend(number, _summed(delta, residual), batch)
            if number == 0 and (start := self._start) is not None:
                residual = changed(residual, "a learned start", lambda rows, _: rows.add_(start), batch)
            delta, residual = layer(delta, residual, batch)
            if media is not None and number in self._media.layers:
                residual = changed(residual, "features of media", partial(_add, number), batch)
            if number in self._stage_ends:
                broadcast = partial(self._broadcast, self._stage_ends[number])
                delta, residual = None, changed(_summed(delta, residual), "the stream of a stage", broadcast, batch)
            if batch.after_layer is not None:
                batch.after_layer()
        if self._streams is not None:
            if len(self._layers) in tapped:
                residual = changed(residual, "streams for drafts", _take, batch)
            return self._streams.narrowed(residual, batch.carried.mix)
        return _summed(delta, residual)

    def _blend(self, number: int, x: Stream, batch: ForwardBatch) -> Stream:
        """The stream before layer ``number``, which is kept or blended with a kept one there; may mutate x."""
        config, kept = self.config, batch.carried.kept
        if any(blend.source == number for blend in config.blends):
            kept[number] = changed(x, "a stream kept", lambda rows, _: rows.clone(), batch)
        for blend in (each for each in config.blends if each.layer == number):
            earlier, blended = kept[blend.source], _both if blend.summed else partial(_blended, blend.share)
            if isinstance(x, Traced):
                assert isinstance(earlier, Traced)
                x = x.call("a blend of streams", blended, x.width, earlier)
            else:
                assert isinstance(x, torch.Tensor)
                assert isinstance(earlier, torch.Tensor)
                x = blended(x, earlier)
        return x

    def _between_loops(self, x: Stream) -> Stream:
        """The stream that the next loop begins with."""
        normed = self.head.norm.plain(x)
        return normed.settled() if isinstance(normed, Traced) else normed

    def _broadcast(self, rank: int, x: torch.Tensor, _batch: ForwardBatch) -> torch.Tensor:
        """The residual stream of worker ``rank``, which has the layers before, in place of x; mutates x."""
        assert self.context.ranks is not None
        return self.context.ranks.broadcast_(x, rank)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """See :meth:`.input_embedding.InputEmbedding.of`."""
        return self._embedding.of(tokens)

    def given(self, rows: torch.Tensor) -> torch.Tensor:
        """See :meth:`.input_embedding.InputEmbedding.given`."""
        return self._embedding.given(rows)

    def logits(
        self, hidden: torch.Tensor, out: torch.Tensor | None = None, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary], in ``out`` if given.
        ``adapters`` are those of these rows.

        Without ``out`` they may be good until the next call only.
        """
        product = self.head.product(hidden) if self._programs is None else self._programs.logits(hidden)
        logits = self.head.logits(product, out)
        if adapters is not None:
            self.head.add_adapters_(logits, hidden, adapters)
        return self.head.finished(logits)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → what the head would get, not rounded: float32."""
        return self.head.norm.exact(hidden)

    def programs(self, caches: Sequence[LayerCache]) -> Programs | None:
        """The pass over these caches as programs, where weights are packed: recorded when they are first seen."""
        if not isinstance(self._embedding.words, PackedTable):
            return None
        if self._programs is None or not self._programs.over(caches):
            self._programs = self._record(caches)
            self._bodies.clear()
        return self._programs

    def _body_for(self, batch: ForwardBatch) -> Body:
        """The pass over the batch's caches where some of its tokens are media, have adapters, or are taken on the way,
        recorded when there first are any."""
        rows, taps = batch.adapter_rows, batch.taps
        layers = () if taps is None else taps.layers
        kind = batch.media is not None, rows is not None, self._embedding.adds_words(rows), layers
        if (body := self._bodies.get(kind)) is None:
            media, nobody = self._media if kind[0] else None, NOBODY if kind[1] else None
            residual = self._recorded(batch.caches, media, nobody, taps, adds_words=kind[2])
            body = self._bodies[kind] = Body(residual, batch.caches)
        return body

    def keys_of_media(self, states: torch.Tensor) -> dict[int, torch.Tensor]:
        """The keys and values of a medium for layers of cross-attention, by layer, from its states [states, hidden]."""
        crossing = (layer for layer in self._layers if isinstance(layer, PictureLayer))
        return {layer.number: layer.keys_and_values(states) for layer in crossing}

    def place_media(self, positions: torch.Tensor) -> int:
        """Write the m-rope positions of the next pass's media tokens to the rotary tables; returns the line of the
        first.

        ``positions``: frame, row and column; see :meth:`..layers.rotary.RotaryTables.place`.
        """
        return self._rotary.place(positions)

    def body(self, caches: Sequence[LayerCache]) -> Traced:
        """The pass over these caches recorded anew, from tokens to hidden states."""
        return self._recorded(caches)

    def _recorded(
        self,
        caches: Sequence[LayerCache],
        media: MediaBatch | None = None,
        adapter_rows: AdapterRows | None = None,
        taps: Taps | None = None,
        *,
        adds_words: bool = False,
    ) -> Traced:
        batch = ForwardBatch.traced(TracedTokens(Program()), caches, media, adapter_rows, taps)
        residual = self._hidden(batch, adds_words=adds_words)
        assert isinstance(residual, Traced)
        return residual

    def _record(self, caches: Sequence[LayerCache]) -> Programs:
        """Record the body and the head over these caches.

        One recording serves rows with adapters and without, unless a product that adapters change has to be a call.
        """
        residual, head = self.body(caches), Program()
        adapts = False
        if self.context.adapters is not None:
            adapted = self._recorded(caches, adapter_rows=NOBODY)
            adapts = adapted.program.calls == residual.program.calls
            residual = adapted if adapts else residual
        hidden = Traced.written(head, head.buffer(self.config.hidden_size))
        logits = self.head.product(hidden)
        assert isinstance(logits, Traced)
        return Programs(residual, hidden, logits, caches, adapts=adapts)


def _summed(delta: Delta | None, residual: Stream) -> Stream:
    return residual if delta is None else added_(residual, delta)


def _blended(share: float, x: torch.Tensor, earlier: torch.Tensor, _batch: Any = None) -> torch.Tensor:
    return between(x.float(), earlier.float(), share).to(x.dtype)


def _both(x: torch.Tensor, earlier: torch.Tensor, _batch: Any = None) -> torch.Tensor:
    return x + earlier


def _take(x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
    assert batch.taps is not None
    return batch.taps.take(x)


def _add(layer: int, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
    assert batch.media is not None
    return batch.media.add(layer, x)
