"""Drives our decoder step by step and keeps the logits of every position, for comparison with transformers."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch

from stentor.engine.layers.linear import Placement
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.models.decoder import Decoder
from stentor.engine.worker.batch import build_batch
from stentor.engine.worker.rows import RowTable
from stentor.engine.worker.setup import allocate_caches
from stentor.protocols.sampling import SamplingParams
from stentor.protocols.steps import NewRow, RowStep

BLOCK = 16
SLOTS = 8
BLOCKS = 64


class PagedDecoder:
    """A model with a small paged cache whose blocks are handed out in a shuffled order."""

    def __init__(self, path: Path, *, max_model_len: int = 128, invariant: bool = False) -> None:
        checkpoint = open_checkpoint(path, "auto")
        self.config = checkpoint.config
        place = Placement(torch.device("cpu"), torch.float32, invariant)
        self.model = Decoder(checkpoint.config, place, max_model_len)
        self.model.weights.load(iterate_weights(checkpoint, place.dtype), ignore=self.model.ignored_weights)
        self._caches = allocate_caches(checkpoint.config, BLOCKS, BLOCK, place.device, place.dtype)
        self._rows = RowTable(SLOTS, max_model_len, BLOCK)
        self._free = list(range(BLOCKS))
        random.Random(0).shuffle(self._free)

    def add(self, slot: int, tokens: Sequence[int], shared_blocks: Sequence[int] = ()) -> list[int]:
        """Enters a row whose tokens are all known; returns its block table."""
        count = -(-len(tokens) // BLOCK) - len(shared_blocks)
        blocks = [*shared_blocks, *(self._free.pop() for _ in range(count))]
        self._rows.add(NewRow(slot, list(tokens), len(tokens), SamplingParams(max_tokens=1), 0, blocks))
        return blocks

    @torch.inference_mode()
    def run(self, *spans: tuple[int, int, int]) -> list[torch.Tensor]:
        """One step over (slot, start, count) spans → logits [count, vocabulary] of each."""
        steps = [RowStep(slot, start, count, [], False) for slot, start, count in spans]
        batch = build_batch(steps, self._rows, torch.device("cpu"))
        hidden = self.model.forward(batch.tokens, batch.positions, self._caches, batch.attention)
        return list(torch.split_with_sizes(self.model.logits(hidden), [count for _, _, count in spans]))
