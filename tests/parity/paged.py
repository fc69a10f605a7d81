"""Drives our decoder step by step and keeps the logits of every position, for comparison with transformers."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from msgspec.structs import replace

from stentor.engine.layers.linear.rank_group import RankGroup
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.models.decoder import Decoder
from stentor.engine.quantization.choose import Backend
from stentor.engine.worker.adapters.setup import places_for
from stentor.engine.worker.adapters.store import AdapterStore
from stentor.engine.worker.caches import allocate_caches
from stentor.engine.worker.families.family import Text
from stentor.engine.worker.families.setup_parts import layer_context
from stentor.engine.worker.passes.adapter_rows import AdapterRowsOf
from stentor.engine.worker.rows.batch import build_batch
from stentor.engine.worker.rows.rows import RowTable
from stentor.engine.worker.rows.states import RowStates, StateDTypes
from stentor.engine.worker.setup.setup import open_family
from stentor.kernels import native
from stentor.kernels.linear_packed import PLAIN
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.config import ModelImpl, MoEBackend, OnlineQuantization, StateDType, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

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
        model_impl: ModelImpl = "auto",
        states: StateDType = "auto",
        ranks: RankGroup | None = None,
        whole_experts: bool = False,
        staged: bool = False,
        moe_backend: MoEBackend = "auto",
        max_lora_rank: int = 0,
        tables: bool = False,
    ) -> None:
        """``packed``: whether a pass is a program over packed weights, or a call an operation, as on a GPU; None: as
        a worker on this CPU settles it, but for kernels that were asked for by name. The cache is of ``dtype`` unless
        another is named. ``states`` is what recurrent states are kept in. With ``ranks`` it is a part of the model,
        and has ``whole_experts`` or a part of each, or some of the layers where it is ``staged``.
        Above a ``max_lora_rank`` of 0 rows may have adapters, in ``tables`` as on a GPU."""
        config = WorkerConfig(
            model=str(path),
            batch_invariant=invariant,
            quantization=quantization,
            model_impl=model_impl,
            mamba_cache_dtype=states,
            tensor_parallel_size=1 if ranks is None or staged else ranks.size,
            pipeline_parallel_size=ranks.size if ranks is not None and staged else 1,
            rank=0 if ranks is None else ranks.rank,
            enable_expert_parallel=whole_experts,
            moe_backend=moe_backend,
            enable_lora=max_lora_rank > 0,
            max_lora_rank=max_lora_rank or 1,
        )
        family = open_family(config, "cpu")
        assert isinstance(family, Text)
        checkpoint, self.config = family.checkpoint, family.spec
        if packed is None:
            packed = family.packs and native.library() is not None and dtype in PLAIN and backend != "kernels"
        adapters = places_for(config, on_device=tables)
        place = layer_context(checkpoint, config, torch.device("cpu"), dtype, adapters)
        place = replace(place, backend=backend, packed=packed, ranks=ranks)
        self.model = family.make(place, max_model_len)
        family.fill(self.model, iterate_weights(checkpoint, place.dtype, raw=self.model.weights.raw))
        self.caches = allocate_caches(self.config.cache_groups, BLOCKS, BLOCK, place.device, cache_dtype or dtype)
        self._rows = RowTable(SLOTS, max_model_len, BLOCK)
        kept, dtypes = self.config.states, StateDTypes.of(config, place.dtype)
        self._states = RowStates(kept, 2 * SLOTS, SLOTS, dtypes, place.device) if kept else None
        self._adapters = None
        if place.adapters is not None:
            self._adapters = AdapterRowsOf(AdapterStore(place.adapters, max_lora_rank, place.device))
        self._moves: dict[int, int] = {}
        """Rows that go on in another slot for their state."""
        self._free = list(range(BLOCKS))
        random.Random(0).shuffle(self._free)

    @property
    def calls(self) -> list[str]:
        """What a pass as a program calls between its native stretches, in words."""
        assert isinstance(self.model, Decoder)
        programs = self.model.programs(self.caches)
        assert programs is not None
        return programs.calls

    def load(self, number: int, folder: Path) -> None:
        """Puts an adapter into the slot of its number. Raises CheckpointError."""
        assert self._adapters is not None
        self._adapters.store.load(AdapterRef(number, str(number), str(folder)))
        (loaded,) = self._adapters.store.take(None)
        if loaded.error:
            raise CheckpointError(loaded.error)
        self._adapters.store.put([(number, number)])

    def add(
        self,
        slot: int,
        tokens: Sequence[int],
        shared_blocks: Sequence[int] = (),
        left: int = -1,
        adapter: int = -1,
    ) -> list[int]:
        """Enters a row whose tokens are all known; returns its block table. With shared blocks it begins from the state
        that was ``left`` behind them."""
        count = -(-len(tokens) // BLOCK) - len(shared_blocks)
        blocks = [*shared_blocks, *(self._free.pop() for _ in range(count))]
        new = NewRow(
            slot, list(tokens), len(tokens), SamplingParams(max_tokens=1), 0, blocks, state=left, adapter=adapter
        )
        self._rows.add(new)
        if self._adapters is not None:
            self._adapters.enter(StepPlan(0, 0, [], [new], []))
        if self._states is not None:
            self._states.enter(StepPlan(0, 0, [], [new], []))
            self._moves[slot] = slot
        return blocks

    def leave(self, slot: int) -> int:
        """Where a row has its recurrent state, which it leaves behind; -1 where the model keeps none."""
        if self._states is None:
            return -1
        self._moves[slot] = SLOTS + slot
        return slot

    @torch.inference_mode()
    def run(self, *spans: tuple[int, int, int]) -> list[torch.Tensor]:
        """One step over (slot, start, count) spans → logits [count, vocabulary] of each."""
        steps = [
            RowStep(slot, start, count, [], False, state=self._moves.pop(slot, -1)) for slot, start, count in spans
        ]
        batch = build_batch(steps, self._rows, self.caches, torch.device("cpu")).forward
        for extras in (self._states, self._adapters):
            batch = batch if extras is None else extras.extend(batch, steps)
        hidden = self.model.forward(batch)
        if isinstance(self.model, Decoder):
            logits = self.model.logits(hidden, adapters=batch.adapter_rows)
        else:
            logits = self.model.logits(hidden)
        logits = logits.clone()  # packed, they are good until the next step only
        return list(torch.split_with_sizes(logits, [count for _, _, count in spans]))
