"""A runner on a fake device beside the synchronous one, over the same model and driven by the same scheduler."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from stentor.engine.core.request import NOTHING
from stentor.engine.core.scheduler import MAX_IN_FLIGHT, Scheduler
from stentor.engine.layers.forward_batch import ForwardBatch, LayerCache
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.models.decoder import Decoder
from stentor.engine.worker.caches import allocate_caches, block_groups_of, cache_groups, host_memory, kv_block_bytes
from stentor.engine.worker.compute.async_compute import AsyncCompute, Launched, TextExtras
from stentor.engine.worker.compute.pending import Pending
from stentor.engine.worker.compute.runner import ModelRunner
from stentor.engine.worker.compute.sync_compute import SyncCompute
from stentor.engine.worker.device.graphs import GraphCapture, GraphSize
from stentor.engine.worker.rows.rows import RowLimits, with_forks
from stentor.engine.worker.rows.states import RowStates, StateDTypes
from stentor.kernels import force_variant
from stentor.protocols.ipc.actors import Finished, Resource, Submit
from stentor.protocols.ipc.cache_groups import CacheGroup, HostSizes
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import Masks, StepPlan, StepResult
from stentor.tests.engine.schedulers import CONFIG, ready_of
from stentor.tests.engine.scripted_grammar import wide_constraint
from stentor.tests.engine.worker.fake_device import FakeDevice, ManualClock
from stentor.tests.parity import tiny

CPU = torch.device("cpu")
BLOCK = 16
CONTEXT = 96
SLOTS = 8
BUDGET = 24
BLOCKS = 64


class WatchedDecoder(Decoder):
    """Sees to it that a graph hands the model the same tensors and numbers at each replay, as a real one would."""

    device: FakeDevice | None = None
    captured: dict[int, tuple[object, ...]]
    eager: int = 0

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        assert batch.added is None
        if self.device is None or self.device.replaying is None:
            self.eager += 1
            return super().forward(batch)
        tokens = batch.tokens
        assert isinstance(tokens, torch.Tensor)
        tensors = [tokens, batch.positions]
        rows = None if batch.states is None else batch.states.rows
        if rows is not None:
            tensors += (rows.cu_seqlens, rows.reads, rows.writes)
        for attention in batch.attention:
            tensors += (attention.query_start, attention.seq_lens, attention.block_tables, attention.slots)
        numbers: list[tuple[int, ...]] = [
            (attention.max_query_len, attention.max_seq_len, attention.decode_rows) for attention in batch.attention
        ]
        if rows is not None:
            numbers.append((rows.longest,))
        seen = (*((tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors), *numbers)
        key = id(self.device.replaying)
        assert self.captured.setdefault(key, seen) == seen, "a graph was replayed with other inputs"
        return super().forward(batch)


def load(folder: Path) -> WatchedDecoder:
    checkpoint = open_checkpoint(folder)
    model = WatchedDecoder(checkpoint.decoder, LayerContext(CPU, torch.float32, True), CONTEXT)
    model.captured = {}
    model.load(iterate_weights(checkpoint, torch.float32))
    return model


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


@dataclass
class Flight:
    plan: StepPlan
    launched: Launched | None
    """Where it waits for its masks."""
    pending: Pending | None
    masks: Masks | None = None


class Pair:
    """Runs every plan on both, the device one step ahead, and compares what they say."""

    def __init__(
        self,
        model: WatchedDecoder,
        *,
        sizes: Sequence[int] = (),
        mixed: Sequence[GraphSize] = (),
        blocks: int = BLOCKS,
        budget: int = BUDGET,
        block_size: int = BLOCK,
        slots: int = SLOTS,
        device: FakeDevice | None = None,
        clock: ManualClock | None = None,
        chunk: int | None = None,
        host_blocks: int = 0,
    ) -> None:
        """``sizes`` are decode rows of graphs, ``mixed`` the sizes of those with prompts.

        ``chunk``: tokens of a prompt that a step computes at most, and between checkpoints of recurrent states.
        ``host_blocks``: room of the host tier."""
        self.model = model
        self.device = model.device = device or FakeDevice()
        model.captured = {}
        model.eager = 0
        self.clock = clock or ManualClock()
        groups = model.config.cache_groups
        block_groups = block_groups_of(groups, CONTEXT)

        def caches(count: int) -> list[LayerCache]:
            return allocate_caches(groups, count, block_size, CPU, torch.float32, block_groups)

        kept = model.config.states
        num_states = 3 * slots if kept else 0

        dtypes = StateDTypes(torch.float32, torch.float32)
        block_bytes = kv_block_bytes(groups, block_size, torch.float32, block_groups)
        host_states = host_blocks if kept else 0
        tier = HostSizes(host_blocks if groups else 0, block_bytes, host_states, dtypes.nbytes(model.config))

        def states() -> RowStates | None:
            if not kept:
                return None
            host = host_memory(tier.states, tier.state_bytes, CPU)
            return RowStates(kept, num_states, slots, dtypes, CPU, host=host)

        of_host, of_device = states(), states()
        self.host = ModelRunner(
            SyncCompute(
                model,
                caches(blocks),
                CPU,
                RowLimits(slots, CONTEXT, block_size),
                extras=of_host,
                drafts=None,
                host=host_memory(tier.blocks, tier.block_bytes, CPU),
                graphs=None,
            ),
            of_host,
        )
        self.compute = AsyncCompute(
            model,
            caches(blocks + 1),
            self.device,
            RowLimits(slots, CONTEXT, block_size),
            max_num_batched_tokens=budget,
            capture=GraphCapture([*mixed, *(GraphSize(rows) for rows in reversed(sizes))], 0.05, clock=self.clock),
            extras=TextExtras(states=of_device),
            host=host_memory(tier.blocks, tier.block_bytes, CPU),
        )
        self.runner = ModelRunner(self.compute, of_device)
        self.scheduler = Scheduler(
            ready_of(
                num_blocks=blocks,
                block_size=block_size,
                max_num_seqs=slots,
                max_num_batched_tokens=budget,
                max_model_len=CONTEXT,
                max_prefill_chunk=chunk,
                groups=(
                    *cache_groups(groups, block_groups),
                    *([CacheGroup("state", capacity=num_states)] if kept else []),
                ),
                host=tier,
            ),
            CONFIG,
        )
        self.flights: deque[Flight] = deque()
        self.results: list[StepResult] = []
        self.ended: list[Finished] = []
        self.plans: list[StepPlan] = []
        self._rid = 0

    def capture_all(self) -> None:
        with force_variant("reference"):
            while self.compute.advance(busy=False) is not None:
                pass

    def submit(
        self, tokens: list[int], params: SamplingParams, seeds: Sequence[int] = (1,), grammar: int | None = None
    ) -> int:
        """``grammar`` is the seed of one."""
        rid, self._rid = self._rid, self._rid + 1
        awaits: frozenset[Resource] = NOTHING if grammar is None else frozenset(["grammar"])
        submit = Submit(rid, tokens, params, list(seeds), 0, "", 0.0)
        assert self.scheduler.submit(submit, awaits=awaits) is None
        if grammar is not None:
            self.scheduler.prerequisites.constrain(rid, [wide_constraint(tiny.VOCAB, grammar, params) for _ in seeds])
        return rid

    def run(self, *, capture_between: bool = False) -> None:
        """Until nothing is left, or everything that was submitted has ended."""
        with force_variant("reference"):
            while self.turn():
                if capture_between:
                    self.clock.now += 10.0
                    self.compute.advance(busy=True)

    def turn(self) -> bool:
        """Launches what can be planned, then takes the oldest result; false when there is none."""
        while self.scheduler.in_flight < MAX_IN_FLIGHT and (plan := self.scheduler.plan(0.0)) is not None:
            plan = with_forks(plan)
            self.plans.append(plan)
            if plan.masked:
                self.flights.append(Flight(plan, self.runner.forward(plan), None))
            else:
                self.flights.append(Flight(plan, None, self.runner.launch(plan)))
            self._mask()
        if not self.flights:
            return False
        flight = self.flights.popleft()
        expected = self.host.draw(self.host.forward(flight.plan), flight.masks)
        assert flight.pending is not None
        found = self.runner.finish(flight.pending)
        if self.flights and self.flights[0].pending is not None:
            assert not self.flights[0].pending.mark.reached(), "a result waited for the step after"
        assert found.tokens == expected.tokens, flight.plan
        assert found.logprobs == expected.logprobs
        assert found.prompt_logprobs == expected.prompt_logprobs
        assert (found.epoch, found.step) == (expected.epoch, expected.step)
        self.results.append(found)
        self.ended += self.scheduler.complete(expected, 0.0).finished
        self._mask()
        self.scheduler.check_integrity()
        return True

    def _mask(self) -> None:
        if self.scheduler.wants_masks:
            masks, ended = self.scheduler.masks()
            assert not ended.finished
            oldest = self.flights[0]
            assert oldest.launched is not None
            oldest.masks = masks
            oldest.pending = self.runner.draw(oldest.launched, masks)
