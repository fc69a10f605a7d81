"""The Live API through the openai SDK with the demo models: the guide's example, as it stands."""

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


def test_the_guide_s_caller_is_understood_and_answered(server: ServerProcess, tmp_path: Path) -> None:
    (snippet,) = (
        block
        for block in re.findall(r"^```py\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
        if "live.connect" in block
    )
    assert ADDRESS in snippet
    program = tmp_path / "caller.py"
    program.write_text(snippet.replace(ADDRESS, f"http://127.0.0.1:{server.port}"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(program), run_name="__main__")
    assert "What is the capital of France?" in printed.getvalue()
    assert "Paris" in printed.getvalue().split("?", 1)[1]
