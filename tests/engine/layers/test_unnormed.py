"""Products of few rows that take their norm along, or the sum behind: the same numbers, whatever is around them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stentor import kernels
from stentor.engine.layers.linear import linear
from stentor.kernels import NormedProduct
from stentor.tests.parity import tiny
from stentor.tests.parity.paged import PagedDecoder

PROMPT = [5, 9, 3, 7, 11]
STEPS = 4


def logits(folder: Path, rows: int = 1) -> list[torch.Tensor]:
    """Of a prompt of each row, and of steps after them, an operation a call."""
    model = PagedDecoder(folder, packed=False)
    found = []
    for row in range(rows):
        model.add(row, [row, *PROMPT, *range(20, 20 + STEPS)])
        found += model.run((row, 0, 1 + len(PROMPT)))
    for step in range(STEPS):
        found += model.run(*((row, 1 + len(PROMPT) + step, 1) for row in range(rows)))
    return found


@pytest.mark.parametrize(
    ("name", "a_layer"),
    [
        ("llama", 2),
        ("gemma2", 2),  # norms behind both networks, a gate of another kind, and 1 + weight
        ("qwen3-next", 2),  # recurrent layers
        ("cohere", 0),  # both networks take one norm
        ("olmo2", 0),  # norms behind alone
    ],
)
def test_a_row_has_the_same_logits_and_nobody_reads_the_stream_that_was_left(
    name: str, a_layer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.make(name, tmp_path)
    expected = logits(tmp_path)
    calls = 0

    def left(x: torch.Tensor, *arguments: Any, residual: torch.Tensor | None, **options: Any) -> NormedProduct:
        nonlocal calls
        calls += 1
        summed = None if residual is None else residual.clone()
        found = original(x, *arguments, residual=summed, **options)
        if residual is not None:
            residual.fill_(torch.nan)
        return found

    original = kernels.normed_linear
    monkeypatch.setattr(kernels, "normed_linear", left)
    monkeypatch.setattr(linear, "choose_normed", lambda *_, **_options: "triton")
    found = logits(tmp_path)
    layers = len(PagedDecoder(tmp_path, packed=False).config.layers)
    assert calls == a_layer * layers * STEPS
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "a_step"),
    [
        ("llama", 5),  # all norms but the first and the last
        ("qwen3-next", 3),  # two products of networks, and one of attention: recurrent layers keep theirs
        ("cohere", 0),  # both networks are added before one norm
    ],
)
def test_few_rows_have_the_same_logits(name: str, a_step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.make(name, tmp_path)
    expected = logits(tmp_path, 2)
    added, normed = kernels.add_linear_, kernels.normed_linear
    calls = {"added": 0, "normed": 0}

    def add_(*given: Any) -> torch.Tensor:
        calls["added"] += 1
        return added(*given)

    def norm(x: torch.Tensor, *given: Any, squares: torch.Tensor | None, **options: Any) -> NormedProduct:
        calls["normed"] += 1
        assert squares is not None
        torch.testing.assert_close(squares.sum(0), x.square().sum(1))
        return normed(x, *given, squares=squares, **options)

    monkeypatch.setattr(kernels, "add_linear_", add_)
    monkeypatch.setattr(kernels, "normed_linear", norm)
    monkeypatch.setattr(linear, "choose_normed", lambda *_, **_options: "triton")
    monkeypatch.setattr(linear, "choose_added", lambda *_: "triton")
    found = logits(tmp_path, 2)
    assert calls == {"added": a_step * (STEPS + 2), "normed": a_step * (STEPS + 2)}
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
