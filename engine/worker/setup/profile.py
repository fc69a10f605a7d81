"""Measures a device's memory in the largest step, before the KV cache takes the rest."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from stentor.protocols.ipc.actors import MemoryLine
from stentor.protocols.ipc.sampling import MAX_LOGPROBS, SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

from ..compute.async_compute import AsyncCompute, AsyncRunner
from ..device.device import Device
from ..device.graphs import GraphSize


class MemoryProfile(msgspec.Struct, frozen=True):
    """Bytes of device memory by use."""

    total: int
    loaded: int
    """The model's tensors."""
    buffers: int
    """The runner's tensors that outlive a step."""
    activations: int
    """Most that a step takes, with what the allocator holds beside tensors."""
    graphs: int
    """Reserved for all sizes."""
    outside: int
    """The context, libraries and kernels, and other processes."""

    def kv_budget(self, fraction: float) -> int:
        """Bytes for the KV cache out of a ``fraction`` of the device; may be negative."""
        taken = self.loaded + self.buffers + self.activations + self.graphs + self.outside
        return int(self.total * fraction) - taken

    def lines(self, weights_note: str, kept: Sequence[MemoryLine], graph_sizes: int) -> list[MemoryLine]:
        """Lines of the start-up summary, one for each use of memory; ``kept`` are the lines of caches."""
        taken = self.loaded + self.buffers + self.activations + self.graphs + self.outside
        taken += sum(line.bytes for line in kept)
        graphs_note = f"{graph_sizes} sizes of steps, reserved" if graph_sizes else "none"
        return [
            MemoryLine("weights", self.loaded, weights_note),
            *kept,
            MemoryLine("activations", self.activations, "at most, measured"),
            MemoryLine("CUDA graphs", self.graphs, graphs_note),
            MemoryLine("sampler tables", self.buffers, "with logits, block tables and the inputs of a step"),
            MemoryLine("CUDA context and libraries", self.outside, "with kernels, and what other processes hold"),
            MemoryLine("free", self.total - taken, "of the device"),
        ]


def busy_params(vocab_size: int) -> SamplingParams:
    """Parameters that take every step of a draw, cut and penalty."""
    return SamplingParams(
        max_tokens=1,
        top_k=min(50, vocab_size),
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
    )


def worst_steps(slots: int, tokens: int, max_model_len: int, vocab_size: int) -> list[StepPlan]:
    """Plans that need the most memory: the most tokens, the longest tables, and every row samples.

    The caches may have a single block and state slot, which all rows share: their results are not read.
    """
    rows = min(slots, tokens)
    prefill = tokens - rows + 1
    # rows of one token each, and as many long ones as the rest needs, each at the end of its context
    long = min(rows, -(-prefill // max_model_len))
    most = min(MAX_LOGPROBS, vocab_size)
    params = msgspec.structs.replace(busy_params(vocab_size), logprobs=most, prompt_logprobs=most)
    new, steps = [], []
    left = tokens - (rows - long)
    for slot in range(rows):
        count = min(left - (long - slot - 1), max_model_len) if slot < long else 1
        left -= count if slot < long else 0
        length = max_model_len if slot < long else 1
        new.append(NewRow(slot, [0] * length, length, params, slot, []))
        steps.append(RowStep(slot, length - count, count, [], True, state=0))
    return [StepPlan(0, 0, [], new, steps)]


def run_plans(runner: AsyncRunner, plans: list[StepPlan]) -> None:
    """Run plans; the rows of each are released after it."""
    for plan in plans:
        runner.step(plan)
        runner.release([row.slot for row in plan.rows])


def measure(
    device: Device,
    runner: AsyncRunner,
    compute: AsyncCompute,
    plans: list[StepPlan],
    warm: Callable[[], None],
    slots: int,
    graph_sizes: Sequence[GraphSize],
) -> MemoryProfile:
    """Run ``plans``, a decode step of all ``slots``, the first of ``graph_sizes`` and ``warm``, capture a few graphs,
    and measure.

    ``warm`` runs steps of every kind: a kernel for fewer tokens may need more memory than that for the most, and the
    kernels themselves take memory. Discard ``runner`` afterwards.
    """
    device.settle()
    device.forget_peak()
    before = device.memory()
    run_plans(runner, plans)
    for size in (GraphSize(slots), *graph_sizes[:1]):
        compute.warm(size)
    warm()
    peak = device.memory().peak
    device.settle()
    outside = device.memory().outside
    return MemoryProfile(
        total=before.total,
        loaded=before.allocated - compute.buffer_bytes,
        buffers=compute.buffer_bytes,
        activations=peak - before.allocated,  # with what loading left reserved: a step takes that first
        graphs=graph_bytes(device, compute.advance, len(graph_sizes)),
        outside=outside,
    )


_MEASURED_GRAPHS: Final = 8
"""Graphs measured; the driver allocates memory in pieces that may hold several graphs."""


class Advance(Protocol):
    """Does a piece of work towards capturing a graph; returns seconds until the next, None if all are captured."""

    def __call__(self, *, busy: bool) -> float | None: ...


def graph_bytes(device: Device, advance: Advance, sizes: int) -> int:
    """Estimated bytes of all graphs, from capturing the first sizes. The largest is first: its temporaries are the
    shared pool. The driver's memory for each is extrapolated to all."""
    if not sizes:
        return 0
    advance(busy=False)  # a run without a graph
    device.settle()
    before = device.memory()
    advance(busy=False)
    pool = max(device.memory().reserved - before.reserved, 0)
    measured = min(sizes, _MEASURED_GRAPHS)
    for _ in range(2 * (measured - 1)):
        advance(busy=False)
    own = max(device.memory().outside - before.outside, 0)
    return pool + -(-own * sizes // measured)
