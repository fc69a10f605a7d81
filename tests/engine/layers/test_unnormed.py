"""Products of one row that take their norm along: the same numbers, whatever comes before and after."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stentor import kernels
from stentor.engine.layers import linear
from stentor.kernels import NormedProduct
from stentor.tests.parity import tiny
from stentor.tests.parity.paged import PagedDecoder

PROMPT = [5, 9, 3, 7, 11]
STEPS = 4


def logits(folder: Path) -> list[torch.Tensor]:
    """Of a prompt, and of steps of one row after it, an operation a call."""
    model = PagedDecoder(folder, packed=False)
    model.add(0, [*PROMPT, *range(20, 20 + STEPS)])
    (first,) = model.run((0, 0, len(PROMPT)))
    return [first, *(model.run((0, len(PROMPT) + step, 1))[0] for step in range(STEPS))]


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
    monkeypatch.setattr(linear, "choose_normed", lambda *_: "triton")
    found = logits(tmp_path)
    layers = len(PagedDecoder(tmp_path, packed=False).config.layers)
    assert calls == a_layer * layers * STEPS
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
