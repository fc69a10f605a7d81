"""Encoder-decoders: an encoder of a window of audio, a text or a picture, and a decoder with cross-attention to it.

The decoder's keys and values are in the caller's paged cache, as for any decoder. The keys and values of the input are
computed once and stored in paged *encoder slots*: slot p has the blocks [p · slot_blocks, (p + 1) ·
slot_blocks) of the caches of the config's ``cross_group``. In cross-attention every token is a row of its own over all
keys of its encoder slot, so that one operation serves any mixture of prompts and decode rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from stentor import kernels

from ..layers.forward_batch import ForwardBatch, LayerCache
from ..layers.layer import Layer
from ..layers.linear.layer_context import LayerContext
from ..layers.linear.linear import Linear, PlainLinear
from ..layers.linear.packed import PackedTable
from ..layers.linear.quantized import Delta
from ..layers.linear.weights import WeightError, WeightMap
from ..layers.norm import Unnormalised, joined, make_norm
from ..layers.rotary import RotaryTables
from ..model_config.seq2seq.text import UNUSED_PART, TextToTextConfig
from ..model_config.spec.seq2seq import EMBEDDING, ENCODER_BLOCK, Seq2SeqConfig
from ..model_config.speech.encoder_decoder import EncoderDecoderConfig
from ..model_config.speech.fast_conformer import FastConformerConfig
from ..model_config.speech.moonshine import MoonshineConfig
from ..model_config.speech.moonshine_streaming import MoonshineStreamingConfig
from ..model_config.speech.seamless import SeamlessConfig
from ..model_config.speech.speech_to_text import Speech2TextConfig
from ..model_config.speech.whisper import WhisperConfig
from .encoder_stack import AudioEncoder, EncodedWindows, Windows, adapted_rows, go_on
from .head import HeadTransform
from .input_embedding import InputEmbedding, word_table
from .picture_encoder import PictureEncoder
from .speech.alignment import Aligned, token_times
from .speech.fast_conformer import FastConformer, Projection
from .speech.moonshine import MoonshineEncoder
from .speech.moonshine_streaming import MoonshineStreamingEncoder
from .speech.seamless import SeamlessEncoder
from .speech.speech_to_text import Speech2TextEncoder
from .speech.whisper import WhisperEncoder
from .text_encoder import TextEncoder


def _conformer(weights: WeightMap, config: FastConformerConfig, context: LayerContext) -> FastConformer:
    projection = Projection("model.decoder.proj", config.hidden_size) if config.project else None
    return FastConformer(weights, "model.encoder", config.encoder, context, projection, config.dither)


_ENCODERS: Mapping[type[EncoderDecoderConfig], Callable[[WeightMap, Any, LayerContext], AudioEncoder]] = {
    WhisperConfig: WhisperEncoder,
    MoonshineConfig: MoonshineEncoder,
    MoonshineStreamingConfig: MoonshineStreamingEncoder,
    FastConformerConfig: _conformer,
    SeamlessConfig: SeamlessEncoder,
    Speech2TextConfig: Speech2TextEncoder,
}
_UNUSED = (UNUSED_PART, ".num_batches_tracked", "featurizer.window", "featurizer.fb")
"""Tensors of parts that are not used, of training and of features."""
_WINDOWS_AT_ONCE = 8
"""Windows encoded together, which bounds the memory; on a CPU a single one keeps the cores busy."""


def _encoder_of(
    weights: WeightMap, config: Seq2SeqConfig, context: LayerContext, words: PackedTable | torch.Tensor
) -> AudioEncoder | PictureEncoder | TextEncoder:
    if isinstance(config, TextToTextConfig):
        stack = config.encoder_stack
        if stack is not None and stack.words != EMBEDDING:
            words = word_table(weights, stack.words, stack.layers, context)
        if config.pictures is not None:
            return PictureEncoder(weights, config, context, words)
        return TextEncoder(weights, config, context, words)
    assert isinstance(config, EncoderDecoderConfig)
    return _ENCODERS[type(config)](weights, config, context)


def _one_embedding(
    config: Seq2SeqConfig, tensors: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors under their names here. Files may have the embedding of both stacks several times; raises
    :class:`..layers.linear.weights.WeightError` if they differ."""
    embedding: torch.Tensor | None = None
    for stored, tensor in tensors:
        name = config.name_of(stored)
        if name == f"{EMBEDDING}.weight":
            if embedding is not None and not torch.equal(embedding, tensor):
                raise WeightError(f"{stored} is another embedding than the first, expected one for both stacks")
            embedding = tensor
        yield name, tensor


class EncoderDecoder:
    """Audio, a text or a picture, and token ids in, hidden states and logits out.

    ``caches`` are those of the decoder's self-attention. ``cross_caches`` are those of the config's ``cross_group``, in
    blocks of :data:`..model_config.spec.seq2seq.ENCODER_BLOCK`, written by :meth:`write_encodings`. Both
    have one a layer, made by :func:`..worker.caches.allocate_caches`.
    """

    def __init__(self, config: Seq2SeqConfig, context: LayerContext) -> None:
        self.config = config
        self.weights = WeightMap()
        self.context = context = replace(context, float32_stream=context.packed)
        hidden, decoder = config.hidden_size, config.decoder
        words = word_table(self.weights, EMBEDDING, decoder, context)
        self.encoder = _encoder_of(self.weights, config, context, words)
        self._input = InputEmbedding(self.weights, words, config.decoder_input, decoder, context)
        self._head: Linear | PlainLinear | PackedTable
        if config.head:
            self._head = Linear(self.weights, {config.head: config.vocab_size}, hidden, context)
        elif isinstance(words, PackedTable):
            self._head = words
        else:
            self._head = PlainLinear(words, None, invariant=context.invariant)
        self._transform: HeadTransform | None = None
        if isinstance(config, TextToTextConfig) and (spec := config.head_transform) is not None:
            self._transform = HeadTransform(self.weights, spec, decoder, context)
        self._head_bias: torch.Tensor | None = None
        if config.head_bias:
            self._head_bias = context.empty(config.vocab_size, dtype=torch.float32)
            self.weights.add(f"{config.head_bias}.bias", self._head_bias)
        elif isinstance(config, TextToTextConfig) and (config.logits_bias or config.never):
            self._head_bias = self._bias_of(config)
        rotary = RotaryTables(decoder.max_position, decoder.max_position, context, weights=self.weights)
        self._decoder = [Layer(self.weights, layer, decoder, rotary, context) for layer in range(config.num_layers)]
        norms, norm = decoder.layers[0].norms, config.decoder_norm
        self._norm = make_norm(self.weights, norm, norms, decoder, context) if norm else Unnormalised()
        # a window of audio keeps a CPU's cores busy alone
        self._at_once = 1 if context.packed and isinstance(config, EncoderDecoderConfig) else _WINDOWS_AT_ONCE
        self._cross: tuple[npt.NDArray[np.int32], kernels.AttentionBatch] | None = None
        """The last arguments of :meth:`cross_batch`, and its result."""

    @property
    def sees(self) -> bool:
        """Whether windows are pictures, which the encoder may refuse (ValueError)."""
        return isinstance(self.encoder, PictureEncoder)

    def _bias_of(self, config: TextToTextConfig) -> torch.Tensor:
        """What is added to logits, float32 [vocabulary]: the stored bias, and -inf for tokens that no output has."""
        stored = self.context.zeros(config.vocab_size)
        if config.logits_bias:
            self.weights.offer(config.logits_bias, stored)
        if not config.never:
            return stored
        never = torch.tensor(config.never)
        bias = self.context.empty(config.vocab_size, dtype=torch.float32)
        self.weights.derive(bias, lambda: stored.index_fill(0, never.to(stored.device), -torch.inf))
        return bias

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the weights from a checkpoint's tensors. Raises :class:`..layers.linear.weights.WeightError`."""
        config = self.config
        copied = () if config.head else ("proj_out.weight", "lm_head.weight")  # the embeddings
        unused = config.unused if isinstance(config, TextToTextConfig) else ()
        named = _one_embedding(config, tensors)
        if isinstance(self.encoder, PictureEncoder):
            named = self.encoder.converted(named)
        self.weights.load(named, ignore=(*copied, *unused, *_UNUSED))

    def cross_batch(
        self, encoder_slots: npt.NDArray[np.integer] | Sequence[int], lengths: npt.NDArray[np.integer] | Sequence[int]
    ) -> kernels.AttentionBatch:
        """The cross-attention of a step's tokens (:attr:`..layers.forward_batch.Encoded.attention`).

        Args:
            encoder_slots: the slot of each token's audio.
            lengths: the encoded positions in that slot.
        """
        wanted = np.array([encoder_slots, lengths], dtype=np.int32)
        if self._cross is not None and np.array_equal(self._cross[0], wanted):
            return self._cross[1]  # decoding rows are the same in many steps
        batch = self._cross_batch(*wanted)
        self._cross = wanted, batch
        return batch

    def _cross_batch(
        self, encoder_slots: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
    ) -> kernels.AttentionBatch:
        tokens, blocks = len(encoder_slots), self.config.slot_blocks
        first = encoder_slots * blocks
        tables = first[:, None] + np.arange(blocks, dtype=np.int32)
        device = self.context.device
        return kernels.AttentionBatch(
            query_start=torch.arange(tokens + 1, dtype=torch.int32, device=device),
            seq_lens=torch.from_numpy(lengths).to(device),
            block_tables=torch.from_numpy(tables.astype(np.int32)).to(device),
            slots=torch.zeros(tokens, dtype=torch.int64, device=device),  # nothing is written
            max_query_len=1,
            max_seq_len=self.config.source_positions,  # whatever else is in the batch
            decode_rows=tokens,
        )

    def write_encodings(
        self,
        windows: Windows,
        encoder_slots: Sequence[int],
        caches: Sequence[LayerCache],
        after_layer: Callable[[], None] | None = None,
        adapters: Sequence[int] = (),
    ) -> list[int]:
        """Encode windows of samples into distinct encoder slots of ``caches``; returns the positions of each.

        ``windows``, ``after_layer`` and ``adapters``: as for :class:`.encoder_stack.AudioEncoder`.
        """
        pause = after_layer or go_on
        lengths: list[int] = []
        for first in range(0, len(windows), self._at_once):
            some = slice(first, first + self._at_once)
            encoded = self.encoder(windows[some], after_layer, adapters[some])
            self._write(encoded, encoder_slots[some], caches, pause, adapters[some])
            lengths += encoded.lengths
        return lengths

    def _write(
        self,
        encoded: EncodedWindows,
        encoder_slots: Sequence[int],
        caches: Sequence[LayerCache],
        pause: Callable[[], None],
        adapters: Sequence[int],
    ) -> None:
        """Write encoded windows to their encoder slots."""
        room, device = self.config.slot_blocks * ENCODER_BLOCK, encoded.rows.device
        lengths = torch.tensor(encoded.lengths)
        begins = lengths.cumsum(0) - lengths
        moved = torch.tensor(list(encoder_slots)) * room - begins  # from the row to the place of a position
        slots = (torch.arange(len(encoded.rows)) + moved.repeat_interleave(lengths)).to(device)
        rows = adapted_rows(adapters, encoded.lengths, self.context)
        for layer, cache in zip(self._decoder, caches, strict=True):
            assert layer.reads is not None
            k, v = layer.reads.keys_and_values(encoded.rows, rows)
            kernels.write_kv_(k, v, cache.k, cache.v, slots)
            pause()

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden] before the last norm.

        Writes the tokens' keys and values to the batch's caches. Cross-attention uses :meth:`cross_batch`. The result
        may be valid until the next pass only.
        """
        delta: Delta | None = None
        residual = self._input(batch)
        for layer in self._decoder:
            delta, residual = layer(delta, residual, batch)
        hidden = joined(delta, residual, None)
        assert isinstance(hidden, torch.Tensor)
        return hidden

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary], in ``out`` if given."""
        normed = self._norm.plain(hidden)
        if (scale := self.config.logits_scale) != 1.0:
            normed = normed * scale
        made = self._head(normed if self._transform is None else self._transform(normed))
        assert isinstance(made, torch.Tensor)
        product = made.float()
        if isinstance(self.config, TextToTextConfig) and (cap := self.config.logits_softcap):
            product = product.div_(cap).tanh_().mul_(cap)
        if self._head_bias is not None:
            product = product + self._head_bias
        return product if out is None else out.copy_(product)

    def align(
        self,
        tokens: Sequence[int],
        start: int,
        frames: int,
        hidden: torch.Tensor,
        queries: Mapping[int, torch.Tensor],
        first: int,
        encoder_slot: int,
        cross_caches: Sequence[LayerCache],
    ) -> Aligned:
        """Align the tokens [start, len(tokens)) of a row, after a pass that computed all of them.

        Args:
            tokens: all of the row; token 0 was token ``first`` of the pass.
            start: at least 1.
            hidden: returned by the pass.
            queries: filled by the pass.
            frames: encoder positions that are audio.
            encoder_slot: of the row's audio.
        """
        config = self.config
        assert isinstance(config, EncoderDecoderConfig), "texts are not aligned"
        rows = slice(first, first + len(tokens))
        attended = (
            self._attended(queries[layer][rows, head], cross_caches[layer].k, encoder_slot, head, frames)
            for layer, head in config.aligning_heads
        )
        times = token_times(attended, start - 1, config.median_filter)
        wanted = torch.tensor(list(tokens[start:]), device=hidden.device)
        logits = self.logits(hidden[first + start - 1 : first + len(tokens) - 1])
        if config.eos_token_ids and len(wanted) and int(wanted.max()) < (end := min(config.eos_token_ids)):
            logits = logits[:, :end]  # text tokens only
        likely = logits.log_softmax(-1).gather(1, wanted.unsqueeze(1)).exp()
        return Aligned(times, likely.flatten().tolist())

    def _attended(self, q: torch.Tensor, k: torch.Tensor, encoder_slot: int, head: int, frames: int) -> torch.Tensor:
        """Cross-attention weights of one head, float32 [tokens, frames]."""
        first = encoder_slot * self.config.slot_blocks
        blocks = slice(first, first + self.config.slot_blocks)
        keys = k[blocks, head].transpose(0, 1).reshape(k.shape[2], -1)[:, :frames].float()  # [head_dim, frames]
        return torch.softmax(q.float() @ keys * self.config.head_dim**-0.5, dim=-1)
