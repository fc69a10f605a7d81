"""Drives our decoder step by step and keeps the logits of every position, for comparison with transformers."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.models.decoder import Decoder
from stentor.engine.quantization.choose import Backend
from stentor.engine.worker.batch import build_batch
from stentor.engine.worker.caches import allocate_caches
from stentor.engine.worker.rows import RowTable
from stentor.engine.worker.setup_parts import layer_context
from stentor.kernels import native
from stentor.kernels.linear_packed import PLAIN
from stentor.protocols.ipc.config import OnlineQuantization, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep

BLOCK = 16
SLOTS = 8
BLOCKS = 64


class PagedDecoder:
    """A model with a small paged cache whose blocks are handed out in a shuffled order."""

    def __init__(
        self,
        path: Path,
        *,
        max_model_len: int = 128,
        invariant: bool = False,
        backend: Backend = "auto",
        quantization: OnlineQuantization = "none",
        dtype: torch.dtype = torch.float32,
        cache_dtype: torch.dtype | None = None,
        packed: bool | None = None,
    ) -> None:
        """``packed``: whether a pass is a program over packed weights, or a call an operation, as on a GPU; None: as
        a worker on this CPU settles it, but for kernels that were asked for by name. The cache is of ``dtype`` unless
        another is named."""
        checkpoint = open_checkpoint(path, "auto")
        self.config = checkpoint.decoder
        config = WorkerConfig(model=str(path), batch_invariant=invariant, quantization=quantization)
        if packed is None:
            packed = native.library() is not None and dtype in PLAIN and backend != "kernels"
        place = replace(layer_context(checkpoint, config, torch.device("cpu"), dtype), backend=backend, packed=packed)
        self.model = Decoder(checkpoint.decoder, place, max_model_len)
        self.model.load(iterate_weights(checkpoint, place.dtype, raw=self.model.weights.raw))
        self.caches = allocate_caches(
            checkpoint.decoder.cache_groups, BLOCKS, BLOCK, place.device, cache_dtype or dtype
        )
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
        batch = build_batch(steps, self._rows, self.caches, torch.device("cpu"))
        hidden = self.model.forward(batch.forward)
        logits = self.model.logits(hidden).clone()  # packed, they are good until the next step only
        return list(torch.split_with_sizes(logits, [count for _, _, count in spans]))
