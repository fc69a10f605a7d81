"""Steps on a device without waiting: a launch queues a step's work, a finish waits and reads.

Two steps may be in progress. The host knows rows and KV slots before any token is sampled. Tokens stay on the device: a
decode row's input is the token that it sampled last, whether or not it has been read.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from stentor.kernels import sampling
from stentor.protocols.ipc.steps import Masks, RowFault, StepPlan, StepResult

from ...layers.forward_batch import LayerCache, MediaBatch
from ...layers.linear.adapters import NOBODY, AdapterRows
from ...models.decoder import Decoder
from ..caches import BlockCopier, cache_tensors
from ..device.device import Device, Mark
from ..device.graphs import Body, GraphCapture, GraphSize, StepGraph, StepGraphs
from ..device.pinned import PinnedPool, StepMemory
from ..device.staging import Inputs, Numbers, Shape, Staging, staged_bytes
from ..media.rows import MediaRows, PlacedRow
from ..passes.adapter_rows import AdapterRowsOf
from ..passes.device_step import DeviceStep, RowBuffers
from ..passes.prepare_inputs import StepNumbers, no_rows, number_step, pad_step
from ..passes.staged_step import StagedStep, changes, no_changes, stage
from ..rows.rows import PromptWork, RowLimits, RowTable
from ..rows.states import RowStates
from ..sampling.device_sampler import DeviceSampler, NewSamplingParams
from ..sampling.logprobs import Alternatives, LogprobTensors, widest, with_logits
from ..sampling.masks import slot_masks
from .pending import Pending, PromptPart
from .runner import ModelRunner

MAX_PENDING = 2
"""Most steps that may be launched and not finished."""

_SPARE_BYTES = 1 << 20
"""Part of a staging buffer for block tables and sampling parameters of entering rows."""


class LogprobReader:
    """Queues log-probabilities on a device and their copies to pinned memory, which are valid once the step is done."""

    def __init__(self, model: Decoder, device: Device) -> None:
        self._model = model
        self._device = device

    def read(
        self, logits: torch.Tensor, tokens: torch.Tensor, asked: Sequence[Alternatives], memory: StepMemory
    ) -> LogprobTensors:
        """Queue the log-probabilities of ``tokens`` [n] under ``logits`` [n, vocabulary], and their copies.

        ``asked``: the alternatives of each.
        """
        rows = torch.arange(len(tokens), device=logits.device)
        top, given = widest(asked)
        ids = memory.bring(np.array(given, dtype=np.int64)) if any(given) else None
        found = sampling.logprobs(logits, rows, tokens, top, ids)
        if any(each.logits for each in asked):
            wanted = memory.bring(np.array([each.logits for each in asked], dtype=np.int64)).bool()
            found = with_logits(found, logits, rows, tokens, wanted)
        values, ranks, best, best_values = (self._fetch(each, memory) for each in found)
        return values, ranks, best, best_values

    def read_prompts(
        self,
        parts: Sequence[PromptWork],
        hidden: torch.Tensor,
        targets: torch.Tensor,
        memory: StepMemory,
        adapters: AdapterRowsOf | None = None,
    ) -> list[PromptPart]:
        """Queue the log-probabilities of prompt tokens.

        ``hidden`` [tokens, hidden] is of the step; ``targets`` has the tokens of all parts, concatenated.
        """
        found = []
        at = 0
        for part in parts:
            pieces = []
            asked = Alternatives(part.top, logits=part.logits)
            for first, tokens in part.pieces():
                own = None if adapters is None else adapters.alike(part.slot, len(tokens), memory)
                logits = self._model.logits(hidden[first : first + len(tokens)], adapters=own)
                pieces.append(self.read(logits, targets[at : at + len(tokens)], [asked] * len(tokens), memory))
                at += len(tokens)
            found.append(PromptPart(part.slot, part.start, part.tokens, asked, pieces))
        return found

    def _fetch(self, source: torch.Tensor, memory: StepMemory) -> torch.Tensor:
        target = memory.pinned(source.numel(), source.dtype).view(source.shape)
        if source.numel():
            self._device.download(target, source)
        return target


class Launched(msgspec.Struct, frozen=True):
    """A step whose forward has been queued; its draw must be queued next."""

    plan: StepPlan
    began: float
    """``time.perf_counter()``"""
    staged: StagedStep
    inputs: Inputs
    raw: torch.Tensor | None
    """Logits of the rows that ask for log-probabilities."""
    graph: StepGraph | None
    """The graph that samples; None without one."""
    asked: list[Alternatives | None]
    prompts: list[PromptPart]
    memory: StepMemory
    faults: list[RowFault]


AsyncRunner = ModelRunner[Launched, Pending]


class TextExtras(NamedTuple):
    """The row extras that a step on a device reads, each if the model has it. The runner enters and releases their
    rows."""

    media: MediaRows | None = None
    states: RowStates | None = None
    adapters: AdapterRowsOf | None = None


class _Changed(NamedTuple):
    """Changes of a plan to the device's tables."""

    update_at: Numbers
    """Indices into the flat block tables."""
    update_to: Numbers
    """The block numbers for these indices."""
    entered: NewSamplingParams
    """Sampling parameters of new rows."""


_NOTHING_CHANGED: Final = _Changed(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), NewSamplingParams.none())


class AsyncCompute:
    """The caches, the sampler and the graphs of one text model on one device.

    The last block of the caches is the null block, which padding rows write; the scheduler does not know of it.
    """

    def __init__(
        self,
        model: Decoder,
        caches: Sequence[LayerCache],
        device: Device,
        limits: RowLimits,
        *,
        max_num_batched_tokens: int,
        capture: GraphCapture,
        extras: TextExtras,
        host: torch.Tensor | None,
    ) -> None:
        """
        Args:
            capture: the graphs that :meth:`advance` captures; none with more decode rows than ``limits.slots``.
            host: memory of the host tier.
        """
        slots = limits.slots
        self._device = device
        self._slots = slots
        self._media, self._states, self._adapters = extras
        self._copier = BlockCopier(cache_tensors(caches), host)
        self._groups = groups = 1 + max((cache.group for cache in caches), default=0)
        self.rows = RowTable(slots, limits.max_model_len, limits.block_size, groups)
        self._null_block = caches[0].k.shape[0] - 1 if caches else 0
        columns = self.rows.blocks.shape[2]
        vocab_size = self._vocab_size = model.config.vocab_size
        rows = max([slots, *(size.rows for size in capture.sizes)])
        place = device.torch_device
        self._buffers = RowBuffers.make(slots, rows, columns, vocab_size, self._null_block, place, groups)
        self._sampler = DeviceSampler(vocab_size, slots, device.torch_device)
        self._changed = _NOTHING_CHANGED
        self._logprobs = LogprobReader(model, device)
        self._step = DeviceStep(model, caches, self._buffers, self._sampler, limits.max_model_len, extras.states)
        tokens = max([max_num_batched_tokens, slots, *(size.tokens for size in capture.sizes)])
        self._staging = Staging(device, staged_bytes(self._largest(rows, tokens)) + _SPARE_BYTES)
        self._pinned = PinnedPool(device)
        self._spare_outputs = deque(device.pinned(rows, torch.int64) for _ in range(MAX_PENDING))
        self._graphs = StepGraphs(device, capture, self.warm, self._graph_bodies)
        self._finished_at = 0.0

    @property
    def buffer_bytes(self) -> int:
        """Device memory of tensors that outlive a step, including the sampler's."""
        return self._buffers.total_bytes + self._sampler.total_bytes + self._staging.total_bytes

    @property
    def pending(self) -> int:
        """Steps launched and not finished."""
        return MAX_PENDING - len(self._spare_outputs)

    @property
    def captured(self) -> list[GraphSize]:
        """The sizes that run as graphs, from few tokens to many."""
        return self._graphs.captured

    def enter(self, plan: StepPlan) -> None:
        """Raises RuntimeError if two steps are in progress already."""
        if not self._spare_outputs:
            raise RuntimeError(f"step {plan.step} came with {MAX_PENDING} steps on their way, the most there may be")
        self._copier.copy_(plan.copies)
        at: list[int] = []
        to: list[int] = []
        for new in plan.new:
            at.extend(self._entries(new.slot, 0, len(new.blocks)))
            to.extend(new.blocks)
        for row in plan.rows:
            if row.new_blocks:
                first = self.rows.block_count(row.slot) - len(row.new_blocks) // self._groups
                at.extend(self._entries(row.slot, first, len(row.new_blocks)))
                to.extend(row.new_blocks)
        entered = self._sampler.add(plan.new, plan.rows, plan.masked)
        self._changed = _Changed(np.array(at, dtype=np.int64), np.array(to, dtype=np.int32), entered)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._sampler.remove(slot)

    def forward(self, plan: StepPlan, began: float) -> Launched:
        """Queue the first half of a step. Raises ValueError for drafts, which are not supported here."""
        if any(row.num_drafts for row in plan.rows):
            raise ValueError(f"step {plan.step} has drafts, and nobody here proposes any")
        sampled = [row.slot for row in plan.rows if row.sample]
        update_at, update_to, entered = self._changed
        self._changed = _NOTHING_CHANGED
        numbers = number_step(plan.rows, self.rows)
        if self._states is not None:
            self._states.move(plan.rows)
        self.rows.num_sampled[sampled] += 1
        asked = [self._sampler.logprobs(slot) for slot in sampled]
        parts = []
        if self.rows.want_prompt_logprobs(plan.rows):
            parts = self.rows.prompt_work(plan.rows, [numbers.starts[row.slot] for row in plan.rows])
        changed = changes(update_at, update_to, entered, [token for part in parts for token in part.tokens])
        media, memory = None, self._pinned.step()
        if self._media is not None and self._media.concerns(plan.rows):
            numbers, media = _with_media(numbers, plan, self._media, memory)
        adapters = self._adapters if self._adapters is not None and self._adapters.any_of(plan.rows) else None
        known = None if adapters is None else adapters.known(numbers, memory)
        graph = None if parts or media or known else self._graph_for(numbers, adapted=adapters is not None)
        staged = None if graph is None else self._staged_for(graph.size, numbers, changed, asked)
        if staged is None:
            graph, staged = None, stage(numbers, changed, asked, self._states, adapters)

        inputs = self._staging.send(staged.shape, staged.sections, memory)
        if staged.shape.entering or staged.shape.sampling_data:
            self._sampler.enter(
                inputs.sampling_slots, inputs.sampling_params, inputs.sampling_data, entered.table_writes
            )
        if staged.shape.updates:
            self._step.update_tables(inputs)
        prompts: list[PromptPart] = []
        if graph is not None:
            graph.forward.replay()
            raw = self._raw_logits(inputs)
        else:
            hidden = self._forward(staged, inputs, media, known or NOBODY)
            raw = self._raw_logits(inputs)
            prompts = self._logprobs.read_prompts(parts, hidden, inputs.targets, memory, adapters)
        faults = [] if self._media is None else self._media.take_faults()
        return Launched(plan, began, staged, inputs, raw, graph, asked, prompts, memory, faults)

    def draw(self, forwarded: Launched, masks: Masks | None) -> Pending:
        """Queue the second half of a step."""
        plan, staged, inputs, raw = forwarded.plan, forwarded.staged, forwarded.inputs, forwarded.raw
        asked, memory = forwarded.asked, forwarded.memory
        if masks is not None:
            self._sampler.mask(plan.masked, slot_masks(masks, self._vocab_size), memory)
        wanted = [each for each in asked if each is not None]
        if raw is not None:
            of_rows = [row.slot for row in plan.rows if row.sample]
            slots = [slot for slot, each in zip(of_rows, asked, strict=True) if each is not None]
            raw = self._sampler.processed(raw, slots, wanted, memory)
        if forwarded.graph is not None:
            assert forwarded.graph.draw is not None
            forwarded.graph.draw.replay()
        elif staged.shape.draws:
            self._step.draw(inputs, staged.shape.draws)
        found = None
        if raw is not None:
            tokens = self._buffers.sampled_token_ids.index_select(0, inputs.logprob_rows)
            found = self._logprobs.read(raw, tokens, wanted, memory)
        sampled_token_ids = self._spare_outputs.popleft()
        if staged.shape.draws:
            self._device.download(
                sampled_token_ids[: staged.shape.draws], self._buffers.sampled_token_ids[: staged.shape.draws]
            )
        return Pending(
            plan,
            forwarded.began,
            self._device.mark(),
            sampled_token_ids,
            staged.numbers.places,
            asked,
            found,
            forwarded.prompts,
            memory,
            forwarded.faults,
        )

    def mark(self) -> Mark:
        """Mark the end of all queued work."""
        return self._device.mark()

    def finish(self, pending: Pending) -> StepResult:
        pending.mark.wait()
        tokens = pending.tokens()
        result = StepResult(
            epoch=pending.plan.epoch,
            step=pending.plan.step,
            tokens=tokens,
            logprobs=pending.logprobs(tokens),
            prompt_logprobs=[part.read() for part in pending.prompts],
            seconds=(now := time.perf_counter()) - max(pending.launched, self._finished_at),
            faults=pending.faults,
        )
        self._finished_at = now
        pending.memory.release()
        self._spare_outputs.append(pending.sampled_token_ids)
        return result

    @torch.inference_mode()
    def advance(self, *, busy: bool) -> float | None:
        """Do a piece of work towards capturing a graph, if there is time.

        ``busy``: steps run or wait. Returns the seconds until the next call is useful; None if all graphs are captured.
        Raises :class:`..device.graphs.CaptureError`.
        """
        return self._graphs.advance(busy=busy)

    # ---- numbers of a plan

    def _entries(self, slot: int, first: int, count: int) -> Iterator[int]:
        """Indices in the flat tables of ``count`` blocks, over all groups, from block ``first`` of each group on."""
        columns = self.rows.blocks.shape[2]
        for group in range(self._groups):
            begin = (group * (self._slots + 1) + slot) * columns + first
            yield from range(begin, begin + count // self._groups)

    def _graph_for(self, numbers: StepNumbers, *, adapted: bool) -> StepGraph | None:
        shape, decodes = numbers.shape, numbers.decode_rows
        return self._graphs.graph_for(decodes, shape.rows - decodes, shape.tokens - decodes, adapted=adapted)

    def _staged_for(
        self, size: GraphSize, numbers: StepNumbers, changed: Mapping[str, Numbers], asked: list[Alternatives | None]
    ) -> StagedStep | None:
        """The step padded to the size of a graph; None if it does not fit into the buffer that graphs read."""
        adapters = self._adapters if size.adapted else None
        staged = stage(self._padded(numbers, size), changed, asked, self._states, adapters)
        return staged if self._staging.fits(staged.shape) else None

    def _padded(self, numbers: StepNumbers, size: GraphSize) -> StepNumbers:
        return pad_step(
            numbers,
            size,
            null_slot=self._slots,
            null_block=self._null_block,
            block_size=self.rows.block_size,
            groups=self._groups,
        )

    # ---- on the device

    def _forward(
        self, staged: StagedStep, inputs: Inputs, media: MediaBatch | None, adapters: AdapterRows
    ) -> torch.Tensor:
        """Run the forward; returns hidden states. Logits are left in their buffer."""
        hidden = self._step.forward(
            inputs,
            staged.shape,
            decode_rows=staged.numbers.decode_rows,
            max_query_len=staged.numbers.max_query_len,
            max_seq_len=staged.numbers.max_seq_len,
            media=media,
            adapters=adapters,
        )
        if staged.shape.draws:
            self._step.logits(hidden.index_select(0, inputs.logits_indices), inputs, staged.shape)
        return hidden

    def _raw_logits(self, inputs: Inputs) -> torch.Tensor | None:
        """Logits of the rows that ask for log-probabilities, copied before sampling changes them."""
        return self._buffers.logits.index_select(0, inputs.logprob_rows) if len(inputs.logprob_rows) else None

    # ---- graphs

    def _largest(self, rows: int, tokens: int) -> Shape:
        """The shape of a step in which the block tables of every row grow."""
        updates, states = rows * self._groups, 0 if self._states is None else rows
        slots = 0 if self._adapters is None else self._adapters.store.tables
        return Shape(rows, tokens, rows, updates, rows, groups=self._groups, state_rows=states, adapter_slots=slots)

    def _graph_bodies(self, size: GraphSize) -> tuple[Body, Body]:
        states = 0 if self._states is None else size.rows
        slots = self._adapters.store.tables if self._adapters is not None and size.adapted else 0
        shape = Shape(size.rows, size.tokens, size.draws, groups=self._groups, state_rows=states, adapter_slots=slots)
        inputs = self._staging.fixed_inputs(shape)
        return lambda: self._step.whole(inputs, shape, size), lambda: self._step.draw(inputs, size.draws)

    @torch.inference_mode()
    def warm(self, size: GraphSize) -> None:
        """Queue a padding-only step of this size, as its graph will run it, for contexts of any length."""
        adapters = self._adapters if size.adapted else None
        staged = stage(self._padded(no_rows(), size), no_changes(), [], self._states, adapters)
        self._staging.send(staged.shape, staged.sections, self._pinned.step())
        for body in self._graph_bodies(size):
            body()


def _with_media(
    numbers: StepNumbers, plan: StepPlan, media: MediaRows, memory: StepMemory
) -> tuple[StepNumbers, MediaBatch | None]:
    """The step's numbers with the positions of rows with media, and the embeddings that replace tokens."""
    sequence = {slot: number for number, slot in enumerate(numbers.sections["row_slots"].tolist())}
    rows = [
        PlacedRow(row.slot, row.start, row.count, numbers.starts[row.slot], sequence[row.slot]) for row in plan.rows
    ]
    positions = media.positions(numbers.sections["positions"], rows, memory.bring)
    return replace(numbers, sections={**numbers.sections, "positions": positions}), media.batch(rows, memory.bring)
