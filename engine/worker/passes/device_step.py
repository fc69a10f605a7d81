"""The tensor work of a step on a device, and the tensors that outlive a step.

Nothing here waits for the device or reads tensor values on the host, so all of it can be captured as a graph.
"""

import dataclasses
from collections.abc import Sequence

import msgspec
import torch

from stentor.kernels import AttentionBatch

from ...layers.forward_batch import ForwardBatch, LayerCache, MediaBatch, MixerInputs, Taps
from ...layers.linear.adapters import NOBODY, AdapterRows, RowGroups
from ...models.decoder import Decoder
from ..device.graphs import GraphSize
from ..device.staging import Inputs, Shape
from ..rows.states import RowStates
from ..sampling.device_sampler import DeviceSampler


class RowBuffers(msgspec.Struct, frozen=True):
    """The device's tensors for rows, kept between steps."""

    tables: torch.Tensor
    """int32 [groups, slots + 1, blocks]: block tables; the last row is for padding and points to the null block."""
    batch_tables: torch.Tensor
    """int32 [groups, rows, blocks]: the block tables of a step's rows, in their order."""
    last_token: torch.Tensor
    """int64 [slots + 1]: the token that each row sampled last."""
    logits: torch.Tensor
    """float32 [rows, vocabulary]: logits of the rows that sample."""
    sampled_token_ids: torch.Tensor
    """int64 [rows]: the sampled tokens."""

    @classmethod
    def make(
        cls, slots: int, rows: int, blocks: int, vocab_size: int, null_block: int, place: torch.device, groups: int = 1
    ) -> "RowBuffers":
        """``rows``: most rows of a step, with padding."""
        return cls(
            tables=torch.full((groups, slots + 1, blocks), null_block, dtype=torch.int32, device=place),
            batch_tables=torch.zeros((groups, rows, blocks), dtype=torch.int32, device=place),
            last_token=torch.zeros(slots + 1, dtype=torch.int64, device=place),
            logits=torch.zeros((rows, vocab_size), dtype=torch.float32, device=place),
            sampled_token_ids=torch.zeros(rows, dtype=torch.int64, device=place),
        )

    @property
    def total_bytes(self) -> int:
        tensors = (self.tables, self.batch_tables, self.last_token, self.logits, self.sampled_token_ids)
        return sum(tensor.nbytes for tensor in tensors)


class DeviceStep:
    """Forward and sampling, from a step's inputs on the device to its tokens there."""

    def __init__(
        self,
        model: Decoder,
        caches: Sequence[LayerCache],
        buffers: RowBuffers,
        sampler: DeviceSampler | None,
        max_seq_len: int,
        states: RowStates | None = None,
    ) -> None:
        """``sampler``: None if the host samples."""
        self._model = model
        self._caches = caches
        self._buffers = buffers
        self._sampler = sampler
        self._max_seq_len = max_seq_len
        self._states = states

    def update_tables(self, inputs: Inputs) -> None:
        """Write the blocks that rows have gained into the tables."""
        self._buffers.tables.view(-1).index_copy_(0, inputs.update_at, inputs.update_to)

    def forward(
        self,
        inputs: Inputs,
        shape: Shape,
        *,
        decode_rows: int,
        max_query_len: int,
        max_seq_len: int,
        query_len: int = 1,
        media: MediaBatch | None = None,
        adapters: AdapterRows = NOBODY,
        taps: Taps | None = None,
        mixed: MixerInputs | None = None,
    ) -> torch.Tensor:
        """Hidden states [tokens, hidden]; writes KV and recurrent states.

        Args:
            query_len: most tokens of a decode row. Above 1, all rows are decode rows, ``inputs`` says how many tokens
                each has, and the host knows these.
            media: embeddings in place of tokens.
            adapters: those that the host must know, for products without a table.
            taps: copies the stream on the way.
            mixed: records the inputs of recurrent mixers.
        """
        tables = self._gather_tables(inputs, shape)
        if decode_rows and query_len == 1:
            last = self._buffers.last_token.index_select(0, inputs.row_slots.narrow(0, 0, decode_rows))
            tokens = inputs.tokens.narrow(0, 0, decode_rows)
            torch.where(tokens < 0, last, tokens, out=tokens)  # below 0: the host does not know it yet
        attention = [
            AttentionBatch(
                query_start=inputs.query_start,
                seq_lens=inputs.seq_lens,
                block_tables=own,
                slots=slots,
                max_query_len=max_query_len,
                max_seq_len=max_seq_len,
                decode_rows=decode_rows,
                decode_query_len=query_len,
                ragged_tokens=shape.tokens if query_len > 1 else None,
            )
            for own, slots in zip(tables, inputs.kv_slots.view(self._buffers.tables.shape[0], -1), strict=True)
        ]
        states = None
        if self._states is not None:
            states = self._states.batch(
                inputs.query_start, inputs.state_reads, inputs.state_writes, max_query_len, mixed
            )
        rows = None
        if shape.adapter_slots:
            rows = dataclasses.replace(adapters, groups=RowGroups.of(inputs.adapter_tokens, shape.tokens))
        return self._model.forward(
            ForwardBatch(
                inputs.tokens,
                inputs.positions,
                self._caches,
                attention,
                states=states,
                media=media,
                adapter_rows=rows,
                taps=taps,
            )
        )

    def _gather_tables(self, inputs: Inputs, shape: Shape) -> list[torch.Tensor]:
        """The block tables of the step's rows in their order, int32 [rows, blocks] for each group; valid until the next
        step."""
        tables = [each.narrow(0, 0, shape.rows) for each in self._buffers.batch_tables]
        for known, own in zip(self._buffers.tables, tables, strict=True):
            torch.index_select(known, 0, inputs.row_slots, out=own)
        return tables

    def logits(self, hidden: torch.Tensor, inputs: Inputs, shape: Shape) -> None:
        """Compute the logits of the rows that sample from ``hidden`` [draws, hidden]."""
        rows = None
        if shape.adapter_slots:
            rows = dataclasses.replace(NOBODY, groups=RowGroups.of(inputs.adapter_draws, shape.draws))
        self._model.logits(hidden, out=self._buffers.logits.narrow(0, 0, hidden.shape[0]), adapters=rows)

    def draw(self, inputs: Inputs, draws: int) -> None:
        """Sample one token for each row that samples, and store it as the row's last token."""
        buffers = self._buffers
        assert self._sampler is not None
        sampled_token_ids = buffers.sampled_token_ids.narrow(0, 0, draws)
        self._sampler.draw(buffers.logits.narrow(0, 0, draws), inputs.draw_slots, sampled_token_ids)
        if (ranks := self._model.context.ranks) is not None:
            ranks.broadcast_(sampled_token_ids)
        nobody = len(buffers.last_token) - 1
        slots = inputs.draw_slots.masked_fill(inputs.draw_slots < 0, nobody)
        buffers.last_token.index_copy_(0, slots, sampled_token_ids)

    def whole(self, inputs: Inputs, shape: Shape, size: GraphSize) -> None:
        """Forward and logits of a step padded to ``size``, with lengths that only the device knows."""
        hidden = self.forward(
            inputs,
            shape,
            decode_rows=size.decodes,
            max_query_len=max(1, size.prompt_tokens),
            max_seq_len=self._max_seq_len,
        )
        drawn = hidden.index_select(0, inputs.logits_indices) if size.prompt_tokens else hidden
        self.logits(drawn, inputs, shape)
