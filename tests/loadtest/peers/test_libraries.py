"""Libraries in processes of their own: what is asked and answered, and what is said where one is missing or ends."""

import sys
from pathlib import Path

import pytest

from stentor.loadtest.peers.libraries import library_side
from stentor.loadtest.peers.places import script
from stentor.loadtest.tool import ToolError

FAKE = """
__version__ = "1.2"


class Segment:
    def __init__(self, text):
        self.text = text


class WhisperModel:
    def __init__(self, model, **options):
        self._options = options

    def transcribe(self, file, **options):
        if file == "broken":
            raise SystemExit(3)
        return [Segment(" heard "), Segment(file)], None
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose faster-whisper says the names of files."""
    (tmp_path / "faster_whisper.py").write_text(FAKE)
    python = script("faster-whisper", "python")
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{tmp_path}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)


@pytest.mark.usefixtures("library")
def test_a_library_answers_each_load_in_order() -> None:
    with library_side("fast", "faster-whisper", "/model", "--threads", "1") as side:
        assert (side.name, side.version) == ("fast", "1.2")
        for names in (["a", "b", "c"], ["d"]):
            done = side.run(names, 2)
            assert done.made == [f"heard {name}" for name in names]
            assert done.seconds > 0
            assert done.cpu_seconds >= 0


@pytest.mark.usefixtures("library")
def test_a_library_that_ends_is_one_line() -> None:
    with (
        library_side("fast", "faster-whisper", "/model") as side,
        pytest.raises(ToolError, match="faster-whisper ended with 3"),
    ):
        side.run(["broken"], 1)


def test_a_library_that_is_not_installed_says_how_to_install_it() -> None:
    with (
        pytest.raises(ToolError, match="make peers ARGS=faster-whisper"),
        library_side("fast", "faster-whisper", "/model"),
    ):
        pass
