"""The Live API and translation sessions through the openai SDK with the demo models: the guide's examples, as they
stand."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

from stentor.loadtest.server_process import ServerProcess

pytest.importorskip("piper", reason="the demo's voice needs the extra `speech`")
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "realtime.md"
ADDRESS = "http://127.0.0.1:8000"


def printed(calls: str, server: ServerProcess, folder: Path) -> str:
    """What the guide's example that calls this prints."""
    (snippet,) = (
        block
        for block in re.findall(r"^```py\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
        if calls in block
    )
    assert ADDRESS in snippet
    program = folder / "caller.py"
    program.write_text(snippet.replace(ADDRESS, f"http://127.0.0.1:{server.port}"))
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(program), run_name="__main__")
    return output.getvalue()


def test_the_guide_s_caller_is_understood_and_answered(server: ServerProcess, tmp_path: Path) -> None:
    said = printed("live.connect", server, tmp_path)
    assert "What is the capital of France?" in said
    assert "Paris" in said.split("?", 1)[1]


def test_the_guide_s_speaker_is_interpreted(server: ServerProcess, tmp_path: Path) -> None:
    said = printed("translations.connect", server, tmp_path)
    # the demo model knows little French; the example ends when the session has been closed
    assert any(char.isalpha() for char in said)
