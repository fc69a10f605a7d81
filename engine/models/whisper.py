"""Whisper (arXiv:2212.04356): an encoder of 30 seconds of audio, and a decoder with cross-attention to it.

The decoder's keys and values are in the caller's paged cache, as for any decoder. The keys and values of the audio are
computed once a window and stored in paged *encoder slots*: slot p has the blocks [p · slot_blocks, (p + 1) ·
slot_blocks) of the caches of the config's ``cross_group``. In cross-attention every token is a row of its own over all
keys of its encoder slot, so that one operation serves any mixture of prompts and decode rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from stentor import kernels
from stentor.kernels.linear_packed import PLAIN, PackedWeight, empty_packed, linear_packed, pack_plain_

from ..layers.adapters import AdapterRows
from ..layers.attention import Attention
from ..layers.forward_batch import ForwardBatch, LayerCache
from ..layers.layer import Layer
from ..layers.layer_context import LayerContext
from ..layers.linear import PlainLinear
from ..layers.log_mel import LogMel
from ..layers.norm import LayerNorm, added_, joined
from ..layers.packed import PackedTable
from ..layers.quantized import Delta, Stream
from ..layers.rotary import RotaryTables
from ..layers.varlen_batch import VarlenBatch
from ..layers.weights import WeightMap, check_plain, check_shape
from ..model_config.model_spec import Backbone
from ..model_config.whisper_config import ENCODER_BLOCK, WhisperConfig
from .alignment import Aligned, token_times


class Convolution:
    """A convolution of width 3 with a bias, padded with one step of zeros at both ends."""

    WIDTH = 3

    def __init__(
        self, weights: WeightMap, name: str, inputs: int, outputs: int, context: LayerContext, *, stride: int = 1
    ) -> None:
        self._inputs, self._outputs, self._stride = inputs, outputs, stride
        self._invariant = context.invariant
        self._bias = context.empty(outputs)
        weights.add(f"{name}.bias", self._bias)
        width = self.WIDTH * inputs
        self._packed = (
            empty_packed(outputs, width, PLAIN[context.dtype], device=context.place, take=context.take)
            if context.packed
            else None
        )
        self._weight = None if self._packed is not None else context.empty(outputs, width)
        if self._weight is not None:
            weights.add(f"{name}.weight", self._weight.view(outputs, self.WIDTH, inputs).transpose(1, 2))
        if self._packed is not None:
            place = partial(self._pack, f"{name}.weight", self._packed)
            weights.gather(name, ("weight",), place, nbytes=self._packed.nbytes)

    def _pack(self, name: str, packed: PackedWeight, stored: dict[str, torch.Tensor]) -> None:
        weight = stored["weight"]
        check_plain(name, weight)
        check_shape(name, weight, (self._outputs, self._inputs, self.WIDTH))
        pack_plain_(packed, 0, weight.transpose(1, 2).reshape(self._outputs, -1))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [windows, time, inputs] → [windows, ⌈time / stride⌉, outputs]; time must be a multiple of the stride."""
        windows, time, _ = x.shape
        room = time + 2 * self._stride  # with padding, in whole strides
        padded = x.new_zeros(windows * room + self.WIDTH, self._inputs)
        padded[: windows * room].view(windows, room, -1)[:, 1 : time + 1] = x
        count = windows * room // self._stride  # includes unused rows between windows
        rows = padded.as_strided((count, self.WIDTH * self._inputs), (self._stride * self._inputs, 1))
        if self._packed is not None:
            out = linear_packed(rows, self._packed, self._bias.float())
        else:
            assert self._weight is not None
            out = kernels.linear(rows, self._weight, self._bias, invariant=self._invariant)
        return out.view(windows, -1, self._outputs)[:, : time // self._stride]


_WINDOWS_AT_ONCE = 8
"""Windows encoded together, which bounds the memory; on a CPU a single one keeps the cores busy."""
_VALUES_A_PIECE = 1 << 30
"""Multiply-adds for which other models may wait on a CPU: about 5 ms of two cores."""
_LEAST_PIECE = 64
"""Rows; fewer take as long."""


L = TypeVar("L", bound=Layer)


def _go_on() -> None:
    """Used where no other model shares the device."""


class _EncoderLayer(Layer):
    """An encoder layer computed in pieces of rows, between which others may use the device."""

    def in_pieces(
        self,
        residual: torch.Tensor,
        batch: ForwardBatch,
        piece: int,
        after_piece: Callable[[], None],
        adapted: Callable[[int], AdapterRows | None],
    ) -> None:
        """Add the layer to ``residual`` [positions of all windows, hidden], in place.

        Args:
            piece: most rows between calls of ``after_piece``; one window may have smaller pieces.
            after_piece: called between pieces.
            adapted: the adapters for a number of rows.
        """
        rows, texts, attention, mlp = len(residual), batch.texts, self._mixer, self._mlp
        assert texts is not None
        assert mlp is not None
        assert isinstance(attention, Attention)
        parts = [residual[first : first + piece] for first in range(0, rows, piece)]
        made = []
        for part in parts:
            x = joined(None, part, self._mixer_in)
            assert isinstance(x, torch.Tensor)
            made.append(attention.into(x, adapted(len(part))))
            after_piece()
        q, k, v = (made[0] if len(parts) == 1 else torch.cat(made)).chunk(3, dim=1)
        for part, queries in zip(parts, q.split(piece), strict=True):
            if len(parts) > 1:
                starts = texts.cu_seqlens.new_tensor([0, len(part)])
                batch = replace(batch, texts=replace(texts, query_starts=starts))
            own = adapted(len(part))
            attended = attention.attend(queries, k, v, batch)
            after_piece()
            x = joined(attention.out(attended, own), part, self._mlp_in)
            added_(part, mlp(x, replace(batch, adapter_rows=own)))
            after_piece()


class Whisper:
    """Audio and token ids in, hidden states and logits out.

    ``caches`` are those of the decoder's self-attention. ``cross_caches`` are those of the config's ``cross_group``, in
    blocks of :data:`..model_config.whisper_config.ENCODER_BLOCK`, written by :meth:`write_encodings`. Both have one a
    layer, made by :func:`..worker.caches.allocate_caches`.
    """

    def __init__(self, config: WhisperConfig, context: LayerContext) -> None:
        self.config = config
        self.weights = WeightMap()
        self.context = context = replace(context, float32_stream=context.packed)
        hidden, encoder, decoder = config.hidden_size, "model.encoder", "model.decoder"
        self._convolutions = (
            Convolution(self.weights, f"{encoder}.conv1", config.mel_bins, hidden, context),
            Convolution(self.weights, f"{encoder}.conv2", hidden, hidden, context, stride=2),
        )
        self._source_positions = self._table(f"{encoder}.embed_positions", config.source_positions)
        self._encoder = self._layers(_EncoderLayer, config.encoder)
        self._encoder_norm = LayerNorm(self.weights, f"{encoder}.layer_norm", hidden, config.encoder.norm_eps, context)
        self._positions = self._table(f"{decoder}.embed_positions", config.max_position)
        tokens = f"{decoder}.embed_tokens"
        self._embedding = (
            PackedTable(self.weights, tokens, config.vocab_size, hidden, context)
            if context.packed
            else self._table(tokens, config.vocab_size)
        )
        self._head = (
            self._embedding
            if isinstance(self._embedding, PackedTable)
            else PlainLinear(self._embedding, None, invariant=context.invariant)
        )
        self._decoder = self._layers(Layer, config.decoder)
        self._norm = LayerNorm(self.weights, f"{decoder}.layer_norm", hidden, config.decoder.norm_eps, context)
        self._at_once = 1 if context.packed else _WINDOWS_AT_ONCE
        a_row = hidden * (4 * hidden + 2 * config.encoder_intermediate_size + 2 * config.source_positions)
        self._piece = max(_LEAST_PIECE, _VALUES_A_PIECE // a_row)
        self._log_mel: LogMel | None = None
        self._cross: tuple[npt.NDArray[np.int32], kernels.AttentionBatch] | None = None
        """The last arguments of :meth:`cross_batch`, and its result."""

    def _layers(self, kind: type[L], model: Backbone) -> list[L]:
        rotary = RotaryTables(model.max_position, model.max_position, self.context)
        return [kind(self.weights, layer, model, rotary, self.context) for layer in range(len(model.layers))]

    def _table(self, name: str, rows: int) -> torch.Tensor:
        table = self.context.empty(rows, self.config.hidden_size, dtype=self.context.stream)
        self.weights.add(f"{name}.weight", table)
        return table

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the weights from a checkpoint's tensors. Raises :class:`..layers.weights.WeightError`."""
        self.weights.load(tensors, ignore=("proj_out.weight",))  # a copy of the embeddings

    def cross_batch(self, encoder_slots: npt.NDArray[np.integer] | Sequence[int]) -> kernels.AttentionBatch:
        """The encoder slot of each token of a step → :attr:`..layers.forward_batch.Encoded.paged`."""
        wanted = np.asarray(encoder_slots, dtype=np.int32)
        if self._cross is not None and np.array_equal(self._cross[0], wanted):
            return self._cross[1]  # decoding rows are the same in many steps
        batch = self._cross_batch(wanted)
        self._cross = wanted.copy(), batch
        return batch

    def _cross_batch(self, encoder_slots: npt.NDArray[np.int32]) -> kernels.AttentionBatch:
        tokens, blocks = len(encoder_slots), self.config.slot_blocks
        first = encoder_slots * blocks
        tables = first[:, None] + np.arange(blocks, dtype=np.int32)
        device = self.context.device
        return kernels.AttentionBatch(
            query_start=torch.arange(tokens + 1, dtype=torch.int32, device=device),
            seq_lens=torch.full((tokens,), self.config.source_positions, dtype=torch.int32, device=device),
            block_tables=torch.from_numpy(tables.astype(np.int32)).to(device),
            slots=torch.zeros(tokens, dtype=torch.int64, device=device),  # nothing is written
            max_query_len=1,
            max_seq_len=self.config.source_positions,
            decode_rows=tokens,
        )

    def features(self, windows: Sequence[bytes | memoryview]) -> torch.Tensor:
        """Samples (s16le, 16 kHz, mono), at most ``config.samples`` a window → log-mel float32 [windows, frames,
        bins]."""
        if self._log_mel is None:
            self._log_mel = LogMel(self.config.mel_bins, self.context.device)
        return self._log_mel(windows, self.config.samples)

    def encode(
        self,
        features: torch.Tensor,
        after_layer: Callable[[], None] | None = None,
        adapters: Sequence[int] = (),
    ) -> torch.Tensor:
        """[windows, frames, bins] → [windows, source_positions, hidden]

        ``adapters``: the adapter slot of each window, negative for none. ``after_layer``: called between parts of the
        work, which are short for one window on a CPU.
        """
        x = features.to(self.context.stream)
        pause = after_layer or _go_on
        for convolution in self._convolutions:
            x = kernels.activate_(convolution(x).contiguous(), "gelu")
            pause()
        windows, positions, hidden = x.shape
        residual = (x + self._source_positions).view(windows * positions, hidden)
        piece = self._piece if after_layer is not None and windows == 1 and self.context.packed else len(residual)
        varlen = VarlenBatch(torch.arange(0, len(residual) + 1, positions, dtype=torch.int32), positions)
        batch = ForwardBatch.whole(torch.empty(0, dtype=torch.int64, device=x.device), varlen)
        adapted = partial(self._adapted, adapters)
        for layer in self._encoder:
            layer.in_pieces(residual, batch, piece, pause, adapted)
        return self._encoder_norm(residual).view(windows, positions, hidden)

    def write_encodings(
        self,
        windows: Sequence[bytes | memoryview],
        encoder_slots: Sequence[int],
        caches: Sequence[LayerCache],
        after_layer: Callable[[], None] | None = None,
        adapters: Sequence[int] = (),
    ) -> None:
        """Encode windows of samples (as :meth:`features`) into distinct encoder slots of ``caches``.

        ``after_layer`` and ``adapters``: as for :meth:`encode`.
        """
        pause = after_layer or _go_on
        for first in range(0, len(windows), self._at_once):
            some = slice(first, first + self._at_once)
            features = self.features(windows[some])
            pause()
            encoded = self.encode(features, after_layer, adapters[some])
            self._write(encoded, encoder_slots[some], caches, pause, adapters[some])

    def _write(
        self,
        encoded: torch.Tensor,
        encoder_slots: Sequence[int],
        caches: Sequence[LayerCache],
        pause: Callable[[], None],
        adapters: Sequence[int],
    ) -> None:
        """Write encodings [windows, source_positions, hidden] to their encoder slots."""
        room = self.config.slot_blocks * ENCODER_BLOCK
        ids = torch.tensor(list(encoder_slots), device=encoded.device).unsqueeze(1)
        slots = (ids * room + torch.arange(self.config.source_positions, device=encoded.device)).flatten()
        flat = encoded.flatten(0, 1)
        rows = self._adapted(adapters, len(flat))
        for layer, cache in zip(self._decoder, caches, strict=True):
            assert layer.cross is not None
            k, v = layer.cross.keys_and_values(flat, rows)
            kernels.write_kv_(k, v, cache.k, cache.v, slots)
            pause()

    def _adapted(self, adapters: Sequence[int], count: int) -> AdapterRows | None:
        """The adapters of ``count`` rows, divided equally among the windows; None if there are none."""
        if max(adapters, default=-1) < 0:
            return None
        assert self.context.adapters is not None
        lengths = [count // len(adapters)] * len(adapters)
        return AdapterRows.of(adapters, lengths, self.context.device, self.context.adapters.slots)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden] before the last norm.

        Writes the tokens' keys and values to the batch's caches. Cross-attention uses :meth:`cross_batch`. The result
        may be valid until the next pass only.
        """
        table, tokens = self._embedding, batch.tokens
        assert isinstance(tokens, torch.Tensor)
        rows = table.rows(tokens) if isinstance(table, PackedTable) else kernels.embedding(tokens, table)
        delta: Delta | None = None
        residual: Stream = rows + self._positions[batch.positions]
        for layer in self._decoder:
            delta, residual = layer(delta, residual, batch)
        hidden = joined(delta, residual, None)
        assert isinstance(hidden, torch.Tensor)
        return hidden

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states [rows, hidden] from :meth:`forward` → float32 [rows, vocabulary], in ``out`` if given."""
        product = self._head(self._norm(hidden))
        return product.float() if out is None else out.copy_(product)

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
        rows = slice(first, first + len(tokens))
        attended = (
            self._attended(queries[layer][rows, head], cross_caches[layer].k, encoder_slot, head, frames)
            for layer, head in self.config.aligning_heads
        )
        times = token_times(attended, start - 1, self.config.median_filter)
        wanted = torch.tensor(list(tokens[start:]), device=hidden.device)
        logits = self.logits(hidden[first + start - 1 : first + len(tokens) - 1])
        if self.config.eos_token_ids and len(wanted) and int(wanted.max()) < (end := min(self.config.eos_token_ids)):
            logits = logits[:, :end]  # text tokens only
        likely = logits.log_softmax(-1).gather(1, wanted.unsqueeze(1)).exp()
        return Aligned(times, likely.flatten().tolist())

    def _attended(self, q: torch.Tensor, k: torch.Tensor, encoder_slot: int, head: int, frames: int) -> torch.Tensor:
        """Cross-attention weights of one head, float32 [tokens, frames]."""
        first = encoder_slot * self.config.slot_blocks
        blocks = slice(first, first + self.config.slot_blocks)
        keys = k[blocks, head].transpose(0, 1).reshape(k.shape[2], -1)[:, :frames].float()  # [head_dim, frames]
        return torch.softmax(q.float() @ keys * self.config.head_dim**-0.5, dim=-1)
