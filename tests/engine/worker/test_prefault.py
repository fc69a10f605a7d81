import ctypes
import mmap

import pytest
import torch

from stentor.engine.worker.compute.executor import SyncExecutor
from stentor.engine.worker.device import prefault
from stentor.engine.worker.device.prefault import Prefault
from stentor.kernels.native.memory import HUGE, empty_huge, take_pages
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan, StepResult

PAGE = mmap.PAGESIZE
BLOCK = 4096
BLOCKS = 4 * HUGE // BLOCK


def _tensors(count: int = 2) -> list[torch.Tensor]:
    return [empty_huge(BLOCKS * BLOCK).view(BLOCKS, BLOCK) for _ in range(count)]


def _resident(tensor: torch.Tensor) -> int:
    """Bytes of its pages that the process has; not of its mapping, which may be one with a neighbour's."""
    first = tensor.data_ptr() // PAGE * PAGE
    pages = (tensor.data_ptr() + tensor.nbytes - first + PAGE - 1) // PAGE
    found = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(pages * PAGE), found) == 0
    return PAGE * sum(each & 1 for each in found)


def _entering(blocks: list[int]) -> StepPlan:
    row = NewRow(0, [1], 1, SamplingParams(max_tokens=1), 0, blocks)
    return StepPlan(0, 0, [], [row], [RowStep(0, 0, 1, [], True)])


def _growing(blocks: list[int]) -> StepPlan:
    return StepPlan(0, 0, [], [], [RowStep(0, 0, 1, blocks, True)])


def _take_all(pages: Prefault) -> int:
    count = 0
    while pages.wanted:
        pages.take_one()
        count += 1
    return count


def _instead_of_taking(monkeypatch: pytest.MonkeyPatch, *, succeeds: bool) -> list[int]:
    """Where pages were asked for from now on."""
    asked: list[int] = []

    def take(_tensor: torch.Tensor, start: int, _nbytes: int) -> bool:
        asked.append(start)
        return succeeds

    monkeypatch.setattr(prefault, "take_pages", take)
    return asked


def _can_take_pages() -> bool:
    return take_pages(empty_huge(mmap.PAGESIZE), 0, mmap.PAGESIZE)


needs_populate = pytest.mark.skipif(not _can_take_pages(), reason="needs MADV_POPULATE_WRITE (Linux 5.14)")


@needs_populate
def test_taken_pages_are_resident_and_keep_what_they_hold() -> None:
    memory = empty_huge(4 * HUGE)
    memory[5] = 7
    assert _resident(memory) < 4 * HUGE
    assert take_pages(memory, 0, 4 * HUGE)
    assert _resident(memory) >= 4 * HUGE
    assert memory[5] == 7
    assert int(memory.sum()) == 7


@needs_populate
def test_the_next_blocks_of_every_tensor_are_at_hand_before_they_are_used() -> None:
    tensors = _tensors()
    pages = Prefault(tensors, ahead_bytes=2 * HUGE)
    assert _take_all(pages) == 2
    assert all(HUGE <= _resident(tensor) < 2 * HUGE + HUGE for tensor in tensors)


@needs_populate
def test_more_is_taken_as_blocks_are_used_up_to_the_last() -> None:
    tensors = _tensors()
    pages = Prefault(tensors, ahead_bytes=2 * HUGE)
    _take_all(pages)
    pages.note(_entering([0, 1, HUGE // BLOCK - 1]))
    assert _take_all(pages) == 2
    pages.note(_growing([HUGE // BLOCK]))
    assert _take_all(pages) == 2
    pages.note(_growing([2 * HUGE // BLOCK]))
    assert _take_all(pages) == 2
    pages.note(_growing([BLOCKS - 1]))
    assert not pages.wanted
    assert all(_resident(tensor) >= 4 * HUGE for tensor in tensors)


def test_a_page_of_each_tensor_is_taken_ahead_however_many_there_are() -> None:
    pages = Prefault(_tensors(3), ahead_bytes=HUGE)
    assert _take_all(pages) == 3


def test_no_more_than_a_quarter_of_the_cache_is_taken_ahead() -> None:
    assert _take_all(Prefault(_tensors(), ahead_bytes=1 << 40)) == 2


def test_a_kernel_that_cannot_take_pages_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _instead_of_taking(monkeypatch, succeeds=False)
    pages = Prefault(_tensors())
    assert _take_all(pages) == 1
    pages.note(_entering([BLOCKS // 2]))
    assert not pages.wanted
    assert asked == [0]


class StillRunner:
    def step(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.epoch, plan.step, [], None, [], 0.0)


def test_pages_are_taken_one_at_a_time_and_only_when_no_message_has_come_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("stentor.engine.worker.compute.executor.time.monotonic", lambda: now)
    taken = _instead_of_taking(monkeypatch, succeeds=True)
    steps = SyncExecutor(StillRunner(), lambda message: None, None, Prefault(_tensors(), 2 * HUGE))  # type: ignore[arg-type]
    steps.take(_entering([0]))
    assert steps.rest() == pytest.approx(0.005)
    assert taken == []
    now += 0.006
    assert steps.rest() == 0.0
    assert taken == [0]
    steps.take(_entering([0]))
    assert steps.rest() == pytest.approx(0.005)
    now += 0.006
    while steps.rest() is not None:
        pass
    assert taken == [0, 0, HUGE, HUGE]
