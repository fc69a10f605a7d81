"""Runs the steps of a model that makes vectors and scores of prompts, and draws no tokens."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.ipc.steps import Masks, NewRow, RowPooled, RowStep, StepPlan, StepResult

from ..layers.forward_batch import LayerCache
from ..layers.varlen_batch import VarlenBatch
from ..models.decoder import Decoder
from ..models.pooling_model import PooledTensor, PoolingModel
from .batch import build_batch
from .row_sampler import Forwarded
from .rows import RowTable


class PoolingRunner:
    """Owns the rows of one model, and its cache where tokens see only those before them."""

    def __init__(
        self,
        model: PoolingModel,
        caches: Sequence[LayerCache],
        *,
        slots: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        """``caches``: none where tokens see all others."""
        self._model = model
        self._caches = list(caches)
        self.device = device
        groups = 1 + max((cache.group for cache in caches), default=0)
        self._rows = RowTable(slots, max_model_len, block_size, groups)
        self._asked: dict[int, NewRow] = {}
        """By slot: whose prompt has not been pooled."""
        self._hidden: dict[int, list[torch.Tensor]] = {}
        """By slot: hidden states of the chunks of a prompt that is pooled as a whole, on the device."""
        self.yield_device: Callable[[], None] | None = None
        """Called between the layers of a step, where others compute on the device as well."""

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Runs one step."""
        return self.draw(self.forward(plan))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Forwarded:
        """All of a step."""
        began = time.perf_counter()
        self.release(plan.freed)
        for new in plan.new:
            self._rows.add(new)
            if new.pooling is not None:
                self._asked[new.slot] = new
        for row in plan.rows:
            if row.new_blocks:
                self._rows.extend(row.slot, row.new_blocks)
        decoder = self._model.decoder
        pooled = self._encode(plan.rows) if decoder is None else self._decode(decoder, plan.rows)
        return Forwarded(plan, None, None, time.perf_counter() - began, pooled=pooled)

    def draw(self, forwarded: Forwarded, masks: Masks | None = None) -> StepResult:
        """What the step has brought; nothing is drawn."""
        plan = forwarded.plan
        return StepResult(plan.epoch, plan.step, [], None, [], forwarded.seconds, pooled=forwarded.pooled)

    def release(self, slots: list[int]) -> None:
        """Forgets the rows of these slots."""
        for slot in slots:
            self._rows.remove(slot)
            self._asked.pop(slot, None)
            self._hidden.pop(slot, None)

    # ---- tokens that see all others

    def _encode(self, rows: Sequence[RowStep]) -> list[RowPooled]:
        lengths = np.fromiter((row.count for row in rows), np.int64, len(rows))
        starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        flat = np.concatenate([self._rows.tokens[row.slot, : row.count] for row in rows])
        tokens = torch.from_numpy(flat).to(self.device)
        asked = [self._asked.pop(row.slot) for row in rows]
        begin = torch.from_numpy(starts)
        varlen = VarlenBatch(begin.int(), int(lengths.max()))
        requests = [_pooling(each) for each in asked]
        adapters = [request.adapter for request in requests]
        hidden = self._model.encode(tokens, varlen, self._kinds(varlen, requests), self.yield_device, adapters)
        made = self._model.pool(hidden, tokens, begin.to(self.device), requests)
        return [RowPooled(row.slot, _packed(each)) for row, each in zip(rows, made, strict=True)]

    def _kinds(self, varlen: VarlenBatch, requests: Sequence[Pooling]) -> torch.Tensor | None:
        """1 for tokens of the second text of a pair, where the model tells them apart."""
        if self._model.token_types < 2 or not any(request.second for request in requests):
            return None
        second = torch.tensor(
            [request.second or length for request, length in zip(requests, varlen.lengths, strict=True)]
        )
        owner = torch.repeat_interleave(torch.arange(len(requests)), varlen.host_cu_seqlens.diff())
        return (varlen.host_positions >= second[owner]).long().to(self.device)

    # ---- tokens that see those before

    def _decode(self, decoder: Decoder, rows: Sequence[RowStep]) -> list[RowPooled]:
        batch = build_batch(rows, self._rows, self._caches, self.device)
        hidden = decoder.forward(batch.forward)
        ready: list[tuple[int, torch.Tensor, Pooling, NewRow]] = []
        for row, start in zip(rows, batch.starts, strict=True):
            asked = self._asked.get(row.slot)
            if asked is None:
                continue
            pooling = _pooling(asked)
            ends = row.start + row.count >= asked.prompt_len
            if pooling.last:
                if ends:
                    last = hidden[start + row.count - 1 : start + row.count]
                    ready.append((row.slot, decoder.normed(last), pooling, asked))
            else:
                kept = self._hidden.setdefault(row.slot, [])
                kept.append(decoder.normed(hidden[start : start + row.count]))
                if ends:
                    ready.append((row.slot, torch.cat(kept), pooling, asked))
            if ends:
                del self._asked[row.slot]
                self._hidden.pop(row.slot, None)
        if not ready:
            return []
        states = [each[1] for each in ready]
        starts = torch.tensor([0, *map(len, states)], device=self.device).cumsum(0)
        ids = [each[3].tokens[each[3].prompt_len - len(each[1]) : each[3].prompt_len] for each in ready]
        tokens = torch.tensor([token for text in ids for token in text], device=self.device)
        made = self._model.pool(torch.cat(states), tokens, starts, [each[2] for each in ready])
        return [RowPooled(each[0], _packed(tensor)) for each, tensor in zip(ready, made, strict=True)]


def _pooling(row: NewRow) -> Pooling:
    assert row.pooling is not None, "a row came without what is to be made of it"
    return row.pooling


def _packed(made: PooledTensor) -> Pooled:
    values = made.values.float().cpu().contiguous()
    ids = b"" if made.ids is None else made.ids.cpu().numpy().astype("<u4").tobytes()
    return Pooled(values.shape[0], values.shape[1], values.numpy().astype("<f4", copy=False).tobytes(), ids)
