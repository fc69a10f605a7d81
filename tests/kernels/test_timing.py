"""Which calls a benchmark makes on a GPU, over one that is not there."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from stentor.kernels.tuning import timing
from stentor.kernels.tuning.timing import rotated, time_call

CUDA = torch.device("cuda")


def test_copies_of_a_call_fill_the_l2_cache_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [7_000_000]

    def make() -> Callable[[], object]:
        held[0] += 40_000_000
        return lambda: None

    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held[0])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=50_000_000))
    assert len(rotated(make, CUDA)) == 3
    assert len(rotated(lambda: lambda: None, CUDA)) == timing._GRAPH_CALLS
    assert len(rotated(make, torch.device("cpu"))) == 1


def test_calls_of_a_graph_take_turns_over_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    graphs: list[list[str]] = []

    class Graph:
        """Holds what was called while it was captured."""

        def __enter__(self) -> None:
            made.clear()

        def __exit__(self, *_: object) -> None:
            graphs.append(list(made))

        def replay(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)
    monkeypatch.setattr(timing, "_between", lambda go, device, calls=1: lambda: timing._GRAPH_SECONDS / 7.5)
    found = time_call([lambda: made.append("a"), lambda: made.append("b"), lambda: made.append("c")], CUDA)
    assert graphs == [["a"], ["a", "b", "c", "a", "b", "c", "a"]]
    assert found.median == timing._GRAPH_SECONDS / 7.5
