"""The dispatcher of graphs: sizes, padding, the order of captures, and the time they may take."""

import math
from collections.abc import Callable, Sequence

import pytest

from stentor.engine.worker.device.graphs import (
    Body,
    CaptureError,
    GraphCapture,
    GraphSize,
    StallBudget,
    StepGraphs,
    default_sizes,
    graph_sizes,
    mixed_sizes,
    within_rows,
)
from stentor.protocols.ipc.config import WorkerConfig
from stentor.tests.engine.worker.fake_device import FakeDevice, ManualClock


def test_sizes_are_close_enough_that_little_is_padding() -> None:
    assert default_sizes(1) == [1]
    assert default_sizes(3) == [1, 2, 3]
    assert default_sizes(16) == [1, 2, 4, 8, 16]
    sizes = default_sizes(300)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 300
    for rows in range(1, 301):
        size = next(size for size in sizes if size >= rows)
        assert size - rows < max(2, min(32, rows))


def test_the_largest_step_is_captured_first_then_common_decode_steps_then_prompts() -> None:
    sizes = graph_sizes(WorkerConfig("", max_num_seqs=16, max_num_batched_tokens=256, cuda_graph_prompt_tokens=64))
    assert sizes == [
        GraphSize(16, 64),
        *(GraphSize(rows) for rows in (1, 2, 4, 8, 16)),
        *(GraphSize(rows, tokens) for rows in (0, 1, 4) for tokens in (64, 16)),
        GraphSize(16, 16),
    ]
    many = graph_sizes(WorkerConfig("", max_num_seqs=100, max_num_batched_tokens=2048))
    assert many[:9] == [GraphSize(100, 512), *(GraphSize(rows) for rows in (1, 2, 4, 8, 16, 32, 64, 100))]
    assert [size.decodes for size in many if not size.prompt_tokens][8:] == [24, 40, 48, 56, 72, 80, 88, 96]
    assert all(not size.prompt_tokens for size in many[-8:]), "those between come last"
    asked = WorkerConfig("", max_num_seqs=16, max_num_batched_tokens=256, cuda_graph_sizes=(8, 2))
    assert {size.decodes for size in graph_sizes(asked)} == {0, 2, 8}
    assert max(size.prompt_tokens for size in graph_sizes(asked)) == 256
    assert all(not size.prompt_tokens for size in graph_sizes(WorkerConfig("", max_num_seqs=8)))


def test_graphs_are_few_and_hold_every_step_of_up_to_512_prompt_tokens_with_little_padding() -> None:
    config = WorkerConfig("", max_num_seqs=256, max_num_batched_tokens=2048)
    sizes = graph_sizes(config)
    assert len(sizes) == len(set(sizes)) <= 120
    graphs = _dispatcher(sizes)
    for decodes in range(257):
        for tokens in range(1, 513, 7):
            graph = graphs.graph_for(decodes, 1, tokens)
            assert graph is not None
            assert graph.size.decodes >= decodes
            assert graph.size.prompt_tokens >= tokens
            assert graph.size.tokens <= max(256, decodes + tokens + 128)
    assert graphs.graph_for(1, 1, 513) is None
    assert graphs.graph_for(1, 33, 512) is None, "more prompts than any has room for"


def test_no_size_is_captured_that_no_step_would_take() -> None:
    assert mixed_sizes([1, 8], 512, 24) == [
        *(GraphSize(rows, tokens) for rows in (0, 1) for tokens in (16, 24)),
        GraphSize(8, 16),
        GraphSize(8, 24),
    ]
    assert GraphSize(8, 24) not in mixed_sizes([1, 7, 8], 512, 24), "eight rows leave 16 tokens"
    assert mixed_sizes([1, 8], 0, 24) == []


def test_fewer_rows_leave_fewer_sizes() -> None:
    sizes = [GraphSize(8, 64), GraphSize(8), GraphSize(4), GraphSize(2), GraphSize(0, 64)]
    assert within_rows(sizes, 3) == [GraphSize(3, 64), GraphSize(3), GraphSize(2), GraphSize(0, 64)]


@pytest.mark.parametrize(
    ("size", "prompts", "rows", "tokens"),
    [
        (GraphSize(8), 0, 8, 8),
        (GraphSize(0, 5), 1, 2, 5),
        (GraphSize(3, 64), 4, 8, 67),
        (GraphSize(256, 512), 32, 289, 768),
    ],
    ids=str,
)
def test_a_size_has_room_for_a_prompt_in_every_16_tokens(size: GraphSize, prompts: int, rows: int, tokens: int) -> None:
    assert (size.prompts, size.rows, size.tokens) == (prompts, rows, tokens)


def _dispatcher(sizes: Sequence[GraphSize]) -> StepGraphs:
    """All captured."""
    captures = Captures(sizes)
    while captures.graphs.advance(busy=False) is not None:
        pass
    return captures.graphs


class Captures:
    """The dispatcher with a clock by hand; ``took`` is what each piece of work takes."""

    def __init__(self, sizes: Sequence[GraphSize], share: float = 0.05, took: float = 0.5) -> None:
        self.clock = ManualClock()
        self.took = took
        self.log: list[str] = []
        self.device = FakeDevice()
        self.graphs = StepGraphs(
            self.device, GraphCapture(sizes, share, credit=0.0, clock=self.clock), self._warm, self._bodies
        )

    def miss_all(self) -> None:
        """A step comes for each size."""
        for sizes in self.graphs._holding.values():
            for *_, size in sizes:
                self.graphs.graph_for(size.decodes, size.prompts, size.prompt_tokens)

    def _warm(self, size: GraphSize) -> None:
        self.log.append(f"warm {size.tokens}")
        self.clock.now += self.took

    def _bodies(self, size: GraphSize) -> tuple[Body, Body]:
        self.log.append(f"capture {size.tokens}")
        self.clock.now += self.took
        body: Callable[[], None] = lambda: None  # noqa: E731
        return body, body


def _decodes(*rows: int) -> list[GraphSize]:
    return [GraphSize(each) for each in rows]


def test_sizes_are_captured_in_their_order_and_each_is_run_before() -> None:
    captures = Captures(_decodes(8, 2, 4))
    seconds = []
    while (wait := captures.graphs.advance(busy=False)) is not None:
        seconds.append(wait)
    assert captures.log == ["warm 8", "capture 8", "warm 2", "capture 2", "warm 4", "capture 4"]
    assert seconds == [0.0] * 5, "who has nothing else to do need not wait"
    assert captures.graphs.captured == _decodes(2, 4, 8)
    assert captures.graphs.advance(busy=True) is None


def _found(graphs: StepGraphs, *step: int) -> GraphSize | None:
    graph = graphs.graph_for(*step)
    return None if graph is None else graph.size


def test_a_step_takes_the_smallest_captured_size_that_holds_it() -> None:
    captures = Captures(_decodes(8, 4, 2))
    graphs = captures.graphs
    assert graphs.graph_for(1) is None
    graphs.advance(busy=False)
    assert graphs.graph_for(1) is None, "it was run, not captured"
    graphs.advance(busy=False)
    assert [_found(graphs, rows) for rows in (1, 3, 8, 9)] == [*_decodes(8, 8, 8), None]
    while graphs.advance(busy=False) is not None:
        pass
    assert [_found(graphs, rows) for rows in (1, 2, 3, 4, 5, 8, 9)] == [*_decodes(2, 2, 4, 4, 8, 8), None]


def test_what_most_steps_would_run_in_is_captured_next() -> None:
    captures = Captures([*_decodes(8, 4, 2, 1), GraphSize(8, 16)])
    graphs = captures.graphs
    graphs.graph_for(1)
    for _ in range(2):
        graphs.advance(busy=False)
    assert captures.log == ["warm 8", "capture 8"], "the first one makes room for the others"
    graphs.advance(busy=False)
    for _ in range(3):
        assert _found(graphs, 2) == GraphSize(8), "padding is better than no graph"
        assert _found(graphs, 3, 1, 9) is None
    graphs.graph_for(3, 1, 9)
    while graphs.advance(busy=False) is not None:
        pass
    order = [line.removeprefix("capture ") for line in captures.log if line.startswith("capture")]
    assert order == ["8", "1", "24", "2", "4"], "one that has been run is captured before any other"
    assert not graphs._missed


def test_steps_with_prompts_and_without_have_graphs_of_their_own() -> None:
    graphs = _dispatcher([GraphSize(4), GraphSize(4, 16), GraphSize(0, 32)])
    assert _found(graphs, 3) == GraphSize(4)
    assert _found(graphs, 3, 1, 9) == GraphSize(4, 16)
    assert _found(graphs, 0, 1, 9) == GraphSize(4, 16), "20 tokens are fewer than 32"
    assert _found(graphs, 0, 2, 9) == GraphSize(0, 32), "which alone has room for two prompts"
    assert _found(graphs, 1, 2, 9) is None


def test_a_large_step_is_not_filled_up_to_twice_its_size() -> None:
    graphs = _dispatcher([GraphSize(256, 512), GraphSize(64, 192)])
    assert _found(graphs, 1, 1, 1) == GraphSize(64, 192), "reading the weights takes longer"
    assert _found(graphs, 1, 1, 400) is None
    assert _found(graphs, 128, 1, 511) is None
    assert _found(graphs, 129, 1, 511) == GraphSize(256, 512)


def test_a_busy_worker_gives_captures_only_their_share_of_time() -> None:
    captures = Captures(_decodes(*range(8, 0, -1)), share=0.05, took=0.4)
    captures.miss_all()
    begun = captures.clock.now
    worked = 0
    while (seconds := captures.graphs.advance(busy=True)) is not None:
        if len(captures.log) > worked:
            worked = len(captures.log)
            spent = worked * captures.took
            assert spent <= 0.05 * (captures.clock.now - begun) + captures.took + 1e-9
        captures.clock.now += min(max(seconds, 0.001), 0.25)
    assert len(captures.log) == 16
    elapsed = captures.clock.now - begun
    assert elapsed == pytest.approx(15 * 0.4 / 0.05, rel=0.1), "nor much less than it"


def test_nothing_is_done_before_it_is_paid_for() -> None:
    captures = Captures(_decodes(8, 4), share=0.1, took=0.3)
    captures.miss_all()
    wait = captures.graphs.advance(busy=True)
    assert wait == pytest.approx(2.7)
    captures.clock.now += 2.6
    assert captures.graphs.advance(busy=True) == pytest.approx(0.1)
    assert captures.log == ["warm 8"]
    captures.clock.now += 0.11
    captures.graphs.advance(busy=True)
    assert captures.log == ["warm 8", "capture 8"]


def test_what_is_paid_for_from_the_beginning_is_done_at_once_and_counts_once() -> None:
    clock = ManualClock()
    budget = StallBudget(0.1, clock, credit=0.5)
    waits = []
    for _ in range(4):
        waits.append(budget.wait())
        clock.now += 0.2
        budget.spend(0.2)
    assert waits == pytest.approx([0.0, 0.0, 0.0, 0.8])
    clock.now += 1000.0
    assert budget.wait() == 0.0
    budget.spend(0.3)
    assert budget.wait() == pytest.approx(3.0), "time without work earns nothing"


def test_a_busy_worker_captures_only_what_its_steps_would_run_in() -> None:
    captures = Captures([GraphSize(8, 64), *_decodes(1, 2, 4, 8)], share=1.0, took=0.0)
    graphs = captures.graphs

    def work() -> list[str]:
        done = len(captures.log)
        while graphs.advance(busy=True) not in (math.inf, None):
            pass
        return captures.log[done:]

    assert work() == [], "nobody has come"
    assert _found(graphs, 1) is None
    assert work() == ["warm 72", "capture 72", "warm 1", "capture 1"]
    assert _found(graphs, 1) == GraphSize(1)
    assert work() == []
    assert _found(graphs, 3) is None
    assert work() == ["warm 4", "capture 4"]
    assert not graphs.finished
    while graphs.advance(busy=False) is not None:
        pass
    assert captures.log[6:] == ["warm 2", "capture 2", "warm 8", "capture 8"]


def test_without_a_share_only_an_idle_worker_captures() -> None:
    captures = Captures(_decodes(4), share=0.0)
    captures.miss_all()
    assert captures.graphs.advance(busy=True) == math.inf
    assert captures.log == []
    assert captures.graphs.advance(busy=False) == 0.0
    assert captures.log == ["warm 4"]


def test_a_capture_that_fails_ends_them_all() -> None:
    captures = Captures(_decodes(4, 2))
    captures.graphs.advance(busy=False)
    captures.graphs.advance(busy=False)
    captures.device.capture_error = RuntimeError("out of memory")
    assert captures.graphs.advance(busy=False) == 0.0
    with pytest.raises(CaptureError, match="capturing a CUDA graph of 2 decoding rows failed: RuntimeError"):
        captures.graphs.advance(busy=False)
    assert captures.graphs.advance(busy=False) is None
