"""The encoder of an encoder-decoder from text to text."""

from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace

from ..layers.forward_batch import ForwardBatch
from ..layers.layer import Layer
from ..layers.linear.layer_context import LayerContext
from ..layers.linear.packed import PackedTable
from ..layers.linear.quantized import Delta
from ..layers.linear.weights import WeightMap
from ..layers.norm import Norm, joined, make_norm
from ..layers.rotary import RotaryTables
from ..layers.varlen_batch import VarlenBatch
from ..model_config.seq2seq.text import TextToTextConfig
from ..model_config.spec.positions import DistanceBias
from .encoder_stack import EncodedWindows, Windows
from .input_embedding import InputEmbedding


class TextEncoder:
    """Encodes texts, each int32 token ids as bytes; a text has a position for each token."""

    def __init__(
        self,
        weights: WeightMap,
        config: TextToTextConfig,
        context: LayerContext,
        words: torch.Tensor | PackedTable,
    ) -> None:
        """``words``: :func:`.input_embedding.word_table` of the stack, which the decoder may have too."""
        stack, self._config, self._context = config.encoder_stack, config, context
        assert stack is not None
        model = stack.layers
        self._model = model
        self._input = InputEmbedding(weights, words, stack.input, model, context)
        self._rotary = RotaryTables(model.max_position, model.max_position, context, weights=weights)
        self._layers = [Layer(weights, layer, model, self._rotary, context) for layer in range(len(model.layers))]
        self._norm: Norm | None = None
        if stack.norm:
            self._norm = make_norm(weights, stack.norm, model.layers[0].norms, model, context)

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, adapters: Sequence[int] = ()
    ) -> EncodedWindows:
        """Encode texts; an empty one stands for the longest, of token 0. No text has an adapter.

        ``after_layer``: called behind every layer.
        """
        longest = self._config.source_positions
        texts = [
            torch.frombuffer(bytearray(text), dtype=torch.int32).long() if len(text) else torch.zeros(longest).long()
            for text in windows
        ]
        return self.encode(texts, (), after_layer)

    def encode(
        self,
        texts: Sequence[torch.Tensor],
        states: Sequence[torch.Tensor],
        after_layer: Callable[[], None] | None = None,
    ) -> EncodedWindows:
        """Encode texts, int64 tokens each, behind ``states`` [states, hidden] of each, which stand as embeddings do; or
        alone."""
        device = self._context.device
        begins = [len(each) for each in states] or [0] * len(texts)
        lengths = [begin + len(text) for begin, text in zip(begins, texts, strict=True)]
        varlen = VarlenBatch(torch.tensor([0, *lengths]).cumsum(0).int(), max(lengths))
        parts = (part for begin, text in zip(begins, texts, strict=True) for part in (text.new_zeros(begin), text))
        batch = ForwardBatch.whole(torch.cat([*parts]).to(device), varlen)
        delta: Delta | None = None
        given: tuple[torch.Tensor, torch.Tensor] | None = None
        if states:
            firsts = torch.tensor([0, *lengths[:-1]]).cumsum(0).tolist()
            places = [torch.arange(first, first + begin) for first, begin in zip(firsts, begins, strict=True)]
            given = torch.cat(places).to(device), torch.cat([*states])
        residual = self._input(batch, given=given)
        bias: DistanceBias | None = None
        for number, layer in enumerate(self._layers):
            own = self._model.layers[number].attention
            if own.distance_bias is not None and own.distance_bias != bias and not own.window:
                bias = own.distance_bias
                batch = self._biased(batch, bias, own.heads)
            delta, residual = layer(delta, residual, batch)
            if after_layer is not None:
                after_layer()
        hidden = joined(delta, residual, self._norm)
        assert isinstance(hidden, torch.Tensor)
        return EncodedWindows(hidden, lengths)

    def _biased(self, batch: ForwardBatch, bias: DistanceBias, heads: int) -> ForwardBatch:
        """The batch with what the scores of its texts get by distance, [heads, longest, longest]."""
        texts = batch.texts
        assert texts is not None
        table = self._rotary.distance_bias(bias, heads)
        places = torch.arange(texts.varlen.max_seqlen, device=table.device)
        distances = (places[None, :] - places[:, None]).clamp(-bias.farthest, bias.farthest) + bias.farthest
        padded = texts.padded or texts.varlen.padded(table.device)
        return replace(batch, texts=replace(texts, bias=table[:, distances], padded=padded))
