"""The fake device catches what a real one would get wrong in silence."""

import pytest
import torch

from stentor.tests.engine.worker.fake_device import FakeDevice, OrderError


def test_a_download_is_garbage_until_a_mark_behind_it_is_waited_for() -> None:
    device = FakeDevice()
    early = device.mark()
    target = device.pinned(3, torch.int64)
    source = torch.tensor([1, 2, 3])
    device.download(target, source)
    source.zero_()  # the next step's work
    early.wait()
    assert target.tolist() != [1, 2, 3]
    mark = device.mark()
    assert not mark.reached()
    mark.wait()
    assert mark.reached()
    assert target.tolist() == [1, 2, 3]


def test_pinned_memory_that_changes_before_its_copy_is_due_is_caught() -> None:
    device = FakeDevice()
    host, target = device.pinned(2, torch.int64), torch.zeros(2, dtype=torch.int64)
    host[:] = 7
    device.upload(target, host)
    mark = device.mark()
    host[:] = 8
    with pytest.raises(OrderError, match="overwritten before its copy was due"):
        mark.wait()


def test_pinned_memory_is_garbage_once_its_copy_is_done() -> None:
    device = FakeDevice()
    host, target = device.pinned(2, torch.int64), torch.zeros(2, dtype=torch.int64)
    host[:] = 7
    device.upload(target, host)
    device.mark().wait()
    assert target.tolist() == [7, 7]
    assert host.tolist() != [7, 7]


def test_a_graph_runs_when_it_is_replayed_and_may_only_compute() -> None:
    device = FakeDevice()
    total = torch.zeros(1)

    def body() -> None:
        total.add_(1)

    graph = device.capture(body)
    assert total.item() == 0
    graph.replay()
    graph.replay()
    assert total.item() == 2
    for wrong in (device.forget_peak, device.settle):
        with pytest.raises(OrderError, match="inside a graph"):
            device.capture(wrong).replay()
