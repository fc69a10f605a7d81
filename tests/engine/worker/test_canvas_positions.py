"""Positions of pictures on canvases, beside those of transformers' MiniCPM-V 4.7."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.minicpmv4_7 import modeling_minicpmv4_7

from stentor.engine.worker.media.canvas_positions import canvas_positions
from stentor.protocols.ipc.steps import RowSpan

_THEIRS: Any = modeling_minicpmv4_7.MiniCPMV4_7Model
"""Its method takes any object with the attributes that it uses."""
MARKS = {"image_start_id": 1, "image_end_id": 2, "slice_start_id": 3, "slice_end_id": 4, "newline_id": 5}
PAD, WORD = 9, 20
Sizes = tuple[int, int]


class Prompt:
    """Text and pictures, as lists of tokens, and what both sides are told of them."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.sizes: list[Sizes] = []
        self.spans: list[tuple[RowSpan, list[tuple[int, int]]]] = []

    def text(self, *tokens: int) -> "Prompt":
        self.tokens += tokens
        return self

    def _crop(self, size: Sizes, around: str) -> tuple[int, int]:
        self.tokens += [MARKS[f"{around}_start_id"], *[PAD] * (size[0] * size[1]), MARKS[f"{around}_end_id"]]
        self.sizes.append((4 * size[0], 4 * size[1]))
        return len(self.tokens) - 1 - size[0] * size[1], len(self.tokens) - 1

    def picture(self, whole: Sizes, cut: Sizes = (0, 0), part: Sizes = (1, 1)) -> "Prompt":
        """One that is ``cut`` into rows and columns of slices of one size."""
        runs = [self._crop(whole, "image")]
        for row in range(cut[0]):
            self.tokens += [MARKS["newline_id"]] if row else []
            runs += [self._crop(part, "slice") for _ in range(cut[1])]
        start, end = runs[0][0], runs[-1][1]
        self.spans.append((RowSpan(0, start, end - start, (part[1], *whole)), runs))
        return self

    def ours(self) -> tuple[list[list[int]], int]:
        found = canvas_positions(np.array(self.tokens), self.spans, list(MARKS.values()))
        return found.axes.T.tolist(), found.shift

    def theirs(self) -> tuple[list[list[int]], int]:
        like = SimpleNamespace(config=SimpleNamespace(**MARKS, downsample_mode="16x"))
        like._frame_end_idx = _THEIRS._frame_end_idx
        like._group_visual_frames = _THEIRS._group_visual_frames.__get__(like)
        like.get_vision_position_ids = _THEIRS.get_vision_position_ids.__get__(like)
        ids = torch.tensor([self.tokens])
        axes, shift = _THEIRS.get_rope_index(like, ids, (ids == PAD).int(), torch.tensor(self.sizes))
        return axes[:, 0].tolist(), int(shift)


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(Prompt().text(20, 21).picture((2, 3)).text(22, 23), id="a picture"),
        pytest.param(Prompt().picture((4, 2)), id="a picture alone"),
        pytest.param(Prompt().text(20).picture((2, 3), (3, 2), (4, 4)).text(22), id="rows of slices"),
        pytest.param(Prompt().text(20).picture((3, 5), (1, 3), (7, 2)).text(22), id="a row of slices"),
        pytest.param(Prompt().text(20).picture((3, 5), (4, 1), (2, 7)).text(22), id="a column of slices"),
        pytest.param(
            Prompt().text(20).picture((2, 2)).text(5).picture((3, 2), (2, 2), (3, 3)).text(22), id="a line's end"
        ),
        pytest.param(Prompt().picture((2, 2)).picture((3, 2), (2, 2), (3, 3)).text(5, 22), id="beside each other"),
        pytest.param(Prompt().picture((2, 2)).text(30, 5, 31).picture((5, 2)).text(22), id="words between"),
    ],
)
def test_positions_of_pictures_are_those_of_transformers(prompt: Prompt) -> None:
    assert prompt.ours() == prompt.theirs()


@pytest.mark.parametrize(
    ("grid", "runs"),
    [
        pytest.param((1, 2, 2), [(1, 4)], id="a whole that is too short"),
        pytest.param((4, 2, 2), [(1, 5), (7, 13)], id="rows that are not full"),
        pytest.param((3, 2, 2), [(1, 5), (7, 13), (15, 18)], id="slices of several sizes"),
    ],
)
def test_a_picture_whose_placeholders_do_not_fit_is_refused(
    grid: tuple[int, int, int], runs: Sequence[tuple[int, int]]
) -> None:
    with pytest.raises(ValueError, match="a picture of 2 x 2 embeddings stands at runs of"):
        canvas_positions(np.full(20, PAD), [(RowSpan(0, 1, 17, grid), runs)], list(MARKS.values()))


def test_a_picture_without_a_mark_before_it_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a mark before it"):
        canvas_positions(np.full(8, PAD), [(RowSpan(0, 0, 4, (1, 2, 2)), [(0, 4)])], list(MARKS.values()))
