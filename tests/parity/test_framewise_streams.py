"""Streamed audio of causal models that decode frame by frame: transformers' transcripts of the whole, in chunks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.model_config.speech.fast_conformer import FastConformerSpec
from stentor.engine.models.speech.framewise import FramewiseStream, FramewiseTranscriber
from stentor.tests.parity.framewise import tiny_ctc, tiny_nemotron, tiny_nemotron_3_5
from stentor.tests.parity.test_framewise import expected_of, opened
from stentor.tests.parity.test_whisper import sound

KINDS: dict[str, Callable[[], Any]] = {
    "chunks of three": tiny_nemotron,
    "one chunk and a wide convolution": partial(
        tiny_nemotron, {"conv_kernel_size": 9, "sliding_window": 71, "default_num_lookahead_tokens": 13}
    ),
    "seeing nothing later": partial(
        tiny_nemotron, {"sliding_window": 5, "default_num_lookahead_tokens": 0}, max_symbols_per_step=2
    ),
    "told a language": tiny_nemotron_3_5,
}
WINDOWS = [sound(seconds, seed) for seed, seconds in enumerate((3.0, 1.402, 0.01, 0.94, 1.12))]
"""One is shorter than a position, and two are as long as chunks, or almost."""


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[FramewiseTranscriber, Any]:
    """Ours and transformers'."""
    theirs = KINDS[request.param]()
    folder = tmp_path_factory.mktemp("streams")
    theirs.save_pretrained(folder)
    return opened(folder), theirs


class Listener:
    """Gives one stream no sample before it must."""

    def __init__(self, model: FramewiseTranscriber, pcm: bytes) -> None:
        assert model.config.stream is not None
        self._shape, self._pcm, self._at = model.config.stream, pcm, 0
        self.stream: FramewiseStream = model.begin(7)
        self.positions = self._shape.positions(len(pcm) // 2, ended=True)
        self.found: list[torch.Tensor] = []

    def feed(self, position: int) -> bool:
        """What the position needs; whether it is the last."""
        last = position == self.positions - 1
        end = len(self._pcm) if last else 2 * (self._shape.first + position * self._shape.step)
        self.stream.audio.feed(self._pcm[self._at : end], ended=last)
        self._at = end
        return last


@torch.inference_mode()
def streamed(model: FramewiseTranscriber, pcms: list[bytes]) -> list[torch.Tensor]:
    """The transcripts of streams that are computed together, as long as each goes on."""
    listeners = [Listener(model, pcm) for pcm in pcms]
    for position in range(max(each.positions for each in listeners)):
        turn = [each for each in listeners if position < each.positions]
        last = [each.feed(position) for each in turn]
        for each, rows in zip(turn, model.transcribe_next([one.stream for one in turn], last), strict=True):
            each.found.append(rows)
            check_bounded(model, each.stream)
    return [torch.cat(each.found) for each in listeners]


def check_bounded(model: FramewiseTranscriber, stream: FramewiseStream) -> None:
    assert isinstance(model.config.encoder, FastConformerSpec)
    causal = model.config.encoder.causal
    assert causal is not None
    assert len(stream.audio.samples) < 2000
    assert all(len(block.keys) <= causal.chunk * causal.earlier for block in stream.audio.blocks)


def test_a_stream_has_the_transcript_that_transformers_makes_of_the_whole(
    made: tuple[FramewiseTranscriber, Any],
) -> None:
    ours, theirs = made
    for pcm, found in zip(WINDOWS, streamed(ours, WINDOWS), strict=True):
        assert [(int(a), int(b), int(c)) for a, b, c, _ in found.tolist()] == expected_of(theirs, pcm)


def test_a_stream_has_the_probabilities_of_the_whole(made: tuple[FramewiseTranscriber, Any]) -> None:
    ours, _ = made
    (found,) = streamed(ours, WINDOWS[:1])
    with torch.inference_mode():
        (whole,) = ours.transcribe(WINDOWS[:1], [7])
    assert len(found) > 3
    torch.testing.assert_close(found, whole, atol=2e-3, rtol=1e-4)


def test_audio_that_has_not_come_is_an_error(made: tuple[FramewiseTranscriber, Any]) -> None:
    ours, _ = made
    assert ours.config.stream is not None
    stream = ours.begin(7)
    stream.audio.feed(bytes(320), ended=False)
    if ours.config.stream.first > 360:
        with pytest.raises(ValueError, match="samples that have yet to come"):
            ours.transcribe_next([stream], [False])
    with pytest.raises(ValueError, match="has not ended"):
        ours.transcribe_next([stream], [True])


def test_a_model_that_sees_its_whole_window_takes_no_streams(tmp_path: Path) -> None:
    tiny_ctc({"num_hidden_layers": 1}).save_pretrained(tmp_path)
    assert opened(tmp_path).config.stream is None
