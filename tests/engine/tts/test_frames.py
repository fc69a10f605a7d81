"""Frames are put together from delayed codes, and sent in parts."""

from typing import Any

import numpy as np
import pytest
import torch

from stentor.engine.tts.backend import Stop, Stopped
from stentor.engine.tts.transformers.delays import DelayedCodes
from stentor.engine.tts.transformers.frames import FrameParts

END = 9


class Plain:
    """Two samples for a frame: its first code and its last, a hundredth each."""

    def push(self, frames: Any) -> Any:
        return frames[0][:, [0, -1]].flatten() / 100

    def finish(self) -> Any:
        return torch.tensor([0.5])


def decoded(pcm: bytes) -> list[float]:
    return [round(float(sample), 3) for sample in np.frombuffer(pcm, "<i2") / 32767]


@pytest.mark.parametrize("delays", [[0, 2, 3], [0, 1, 2], [0, 0, 0], [1, 0, 2]])
def test_a_frame_has_the_codes_of_its_steps_and_the_end_is_none(delays: list[int]) -> None:
    frames = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 1]])
    sent: list[bytes] = []
    codes = DelayedCodes(FrameParts(Plain(), 1, 1, Stop(), sent.append), delays, END)
    for step in range(len(frames) + max(delays) + 1):
        row = [END if step - delay == len(frames) else 0 for delay in delays]
        for codebook, delay in enumerate(delays):
            if 0 <= step - delay < len(frames):
                row[codebook] = int(frames[step - delay, codebook])
        codes.take(torch.tensor(row))
    assert [decoded(pcm) for pcm in [*sent, codes.rest()]] == [[0.01, 0.03], [0.04, 0.06], [0.07, 0.01, 0.5]]


def test_the_beginning_fades_in_across_parts() -> None:
    sent: list[bytes] = []
    parts = FrameParts(Plain(), 1, 1, Stop(), sent.append, fade=3)
    for _ in range(2):
        parts.take(torch.tensor([[80, 80]]))
    assert [decoded(pcm) for pcm in [*sent, parts.rest()]] == [[0, 0.4], [0.8, 0.8, 0.5]]


def test_a_sentence_without_frames_is_what_waits() -> None:
    assert decoded(FrameParts(Plain(), 1, 1, Stop(), print).rest()) == [0.5]


def test_frames_that_nobody_wants_are_not_taken() -> None:
    stop = Stop()
    stop.set()
    with pytest.raises(Stopped):
        FrameParts(Plain(), 1, 1, stop, print).take(torch.tensor([[1, 1]]))
