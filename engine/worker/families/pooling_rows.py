"""Rows whose prompts are pooled to vectors or scores."""

from collections.abc import Sequence

import torch
from msgspec.structs import replace

from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.ipc.steps import NewRow, RowPooled, RowStep, StepPlan

from ...layers.forward_batch import ForwardBatch
from ...layers.varlen_batch import VarlenBatch
from ...models.pooling_model import PooledTensor, PoolingModel
from ..rows.batch import Batch
from ..rows.extras import ExtraResults, RowExtras


class PoolingRows(RowExtras):
    """Pools the hidden states of prompts instead of sampling."""

    def __init__(self, model: PoolingModel) -> None:
        super().__init__()
        self._model = model
        self._asked: dict[int, NewRow] = {}
        """By slot: rows whose prompts have not been pooled."""
        self._hidden: dict[int, list[torch.Tensor]] = {}
        """By slot: hidden states, on the device, of a prompt pooled as a whole."""

    def enter(self, plan: StepPlan) -> None:
        self._asked.update((new.slot, new) for new in plan.new if new.pooling is not None)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._asked.pop(slot, None)
            self._hidden.pop(slot, None)

    def extend(self, batch: ForwardBatch, rows: Sequence[RowStep]) -> ForwardBatch:
        if batch.texts is None:
            return batch
        requests = [_pooling(self._asked[row.slot]) for row in rows]
        return replace(
            batch,
            token_types=self._kinds(batch.texts.varlen, requests, batch.positions.device),
            tasks=self._model.adapter_numbers([request.adapter for request in requests]),
            after_layer=self.yield_device,
        )

    def read(self, batch: Batch, rows: Sequence[RowStep], hidden: torch.Tensor) -> ExtraResults:
        ready: list[tuple[NewRow, torch.Tensor]] = []
        for row, start in zip(rows, batch.starts, strict=True):
            asked = self._asked.get(row.slot)
            if asked is None:
                continue
            end = start + row.count
            ends = row.start + row.count >= asked.prompt_len
            kept = self._hidden.setdefault(row.slot, [])
            if not _pooling(asked).last:
                kept.append(self._model.normed(hidden[start:end]))
            elif ends:
                kept.append(self._model.normed(hidden[end - 1 : end]))
            if ends:
                ready.append((asked, torch.cat(self._hidden.pop(row.slot))))
                del self._asked[row.slot]
        return ExtraResults(pooled=self._pooled(ready)) if ready else ExtraResults()

    def _pooled(self, ready: Sequence[tuple[NewRow, torch.Tensor]]) -> list[RowPooled]:
        """Pool prompts with hidden states [tokens, hidden], of all tokens or of the last."""
        states = [each[1] for each in ready]
        device = states[0].device
        starts = torch.tensor([0, *map(len, states)], device=device).cumsum(0)
        ids = [asked.tokens[asked.prompt_len - len(own) : asked.prompt_len] for asked, own in ready]
        tokens = torch.tensor([token for text in ids for token in text], device=device)
        made = self._model.pool(torch.cat(states), tokens, starts, [_pooling(asked) for asked, _ in ready])
        return [RowPooled(asked.slot, _packed(each)) for (asked, _), each in zip(ready, made, strict=True)]

    def _kinds(self, varlen: VarlenBatch, requests: Sequence[Pooling], device: torch.device) -> torch.Tensor | None:
        """Token types: 1 for the second text of a pair; None if the model does not use them."""
        if self._model.token_types < 2 or not any(request.second for request in requests):
            return None
        second = torch.tensor(
            [request.second or length for request, length in zip(requests, varlen.lengths, strict=True)]
        )
        owner = torch.repeat_interleave(torch.arange(len(requests)), varlen.host_cu_seqlens.diff())
        return (varlen.host_positions >= second[owner]).long().to(device)


def _pooling(row: NewRow) -> Pooling:
    assert row.pooling is not None, "a row came without what is to be made of it"
    return row.pooling


def _packed(made: PooledTensor) -> Pooled:
    values = made.values.float().cpu().contiguous()
    ids = b"" if made.ids is None else made.ids.cpu().numpy().astype("<u4").tobytes()
    return Pooled(values.shape[0], values.shape[1], values.numpy().astype("<f4", copy=False).tobytes(), ids)
