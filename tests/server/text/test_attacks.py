"""What hostile templates of requests try, as the server renders them: while other renderings go on."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from stentor.server.text import template_process
from stentor.server.text.errors import TemplateError
from stentor.server.text.pool import TokenizerPool
from stentor.tests.fakes import byte_tokenizer
from stentor.tests.server.text.attacks import COSTLY, CURIOUS, WRONG

SECONDS = 0.15
"""For a rendering."""
GRACE_SECONDS = 0.05
"""Until the child is killed."""
USER = {"role": "user", "content": "Hi"}
OPTIONS: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": False}


class Server:
    """A pool in an event loop of its own, for all tests: its child is started anew only where a template ended it."""

    def __init__(self, runner: asyncio.Runner, seconds: float) -> None:
        self._runner = runner
        self._pool = TokenizerPool(byte_tokenizer(), threads=1, render_seconds=seconds)

    def render(self, source: str) -> tuple[str, int]:
        """What a template brought by a request writes, or why it does not; and how many other renderings ended
        meanwhile."""
        return self._runner.run(self._render(source))

    async def _render(self, source: str) -> tuple[str, int]:
        job = asyncio.create_task(self._pool.render_chat([USER], chat_template=source, **OPTIONS))
        turns = 0
        async with asyncio.timeout(20):
            while not job.done():
                assert await self._pool.render_chat([USER], **OPTIONS) == list(b"<user>Hi\n")
                turns += 1
                await asyncio.sleep(0.002)
            try:
                return bytes(await job).decode(), turns
            except TemplateError as refusal:
                return f"refused: {refusal}", turns

    def close(self) -> None:
        self._pool.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setattr(template_process, "_GRACE_SECONDS", GRACE_SECONDS)
        server = Server(runner, SECONDS)
        yield server
        server.close()


@pytest.fixture(scope="module")
def patient_server() -> Iterator[Server]:
    with asyncio.Runner() as runner:
        server = Server(runner, 5.0)
        yield server
        server.close()


def _check_message(text: str) -> None:
    assert "\n" not in text
    assert len(text) < 400
    for word in ("site-packages", ".py", "<class", "<module", "<function", "0x", "OSError"):
        assert word not in text


@pytest.mark.parametrize("name", COSTLY)
def test_a_template_that_costs_too_much_is_refused_while_others_are_rendered(name: str, server: Server) -> None:
    text, turns = server.render(COSTLY[name])
    assert text.startswith("refused: ")
    _check_message(text)
    if "took longer" in text:
        assert turns > 2
    assert server.render("{{ messages[0].content }}")[0] == "Hi"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_template_is_refused_in_one_line_that_says_why(name: str, patient_server: Server) -> None:
    source, reason = WRONG[name]
    text, _ = patient_server.render(source)
    assert text.startswith("refused: ")
    assert reason in text
    _check_message(text)


@pytest.mark.parametrize("name", CURIOUS)
def test_a_template_that_looks_for_python_finds_nothing(name: str, patient_server: Server) -> None:
    text, _ = patient_server.render(CURIOUS[name])
    if text.startswith("refused: "):
        _check_message(text)
    else:
        assert text in ("", "[Undefined]")
