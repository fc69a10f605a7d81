"""What hostile templates of requests try, as the server renders them: while other renderings go on."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from stentor.server.text.errors import TemplateError
from stentor.server.text.templates import template_process
from stentor.tests.server.text.attacks import COSTLY, CURIOUS, WRONG
from stentor.tests.server.text.patience import PATIENT, patient_pool

SECONDS = 0.15
"""Of CPU time for the rendering of a template that a request brings."""
GRACE_SECONDS = 0.05
"""On top of that, until the child is killed: where the template is hostile."""
USER = {"role": "user", "content": "Hi"}
OPTIONS: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": False}


class Server:
    """A pool in an event loop of its own, for all tests: its child is started anew only where a template ended it."""

    def __init__(self, runner: asyncio.Runner, seconds: float, grace: float, patch: pytest.MonkeyPatch) -> None:
        """``seconds`` are those of the child alone, ``grace`` of hostile templates alone."""
        self._runner = runner
        self._grace = grace
        self._patch = patch
        self._pool = patient_pool(seconds, threads=1)
        self._patch.setattr(template_process, "_GRACE_SECONDS", PATIENT)
        self._patch.setattr(template_process, "_PATIENCE", 1000.0)

    def attack(self, source: str) -> str:
        """What a hostile template brought by a request writes, or why it does not. Others are rendered meanwhile."""
        with self._patch.context() as hurried:
            hurried.setattr(template_process, "_GRACE_SECONDS", self._grace)
            return self._runner.run(self._attack(source))

    def render(self, source: str) -> str:
        """What a template brought by a request writes."""
        return self._runner.run(self._render(source))

    async def _attack(self, source: str) -> str:
        job = asyncio.create_task(self._render(source))
        async with asyncio.timeout(PATIENT):
            while not job.done():
                assert await self._pool.render_chat([USER], **OPTIONS) == list(b"<user>Hi\n")
                await asyncio.sleep(0.002)
        try:
            return await job
        except TemplateError as refusal:
            return f"refused: {refusal}"

    async def _render(self, source: str) -> str:
        return bytes(await self._pool.render_chat([USER], chat_template=source, **OPTIONS)).decode()

    def close(self) -> None:
        self._pool.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        server = Server(runner, SECONDS, GRACE_SECONDS, patch)
        yield server
        server.close()


@pytest.fixture(scope="module")
def patient_server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        server = Server(runner, PATIENT, PATIENT, patch)
        yield server
        server.close()


def _check_message(text: str) -> None:
    assert "\n" not in text
    assert len(text) < 400
    for word in ("site-packages", ".py", "<class", "<module", "<function", "0x", "OSError"):
        assert word not in text


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", COSTLY)
def test_a_template_that_costs_too_much_is_refused_while_others_are_rendered(name: str, server: Server) -> None:
    text = server.attack(COSTLY[name])
    assert text.startswith("refused: ")
    _check_message(text)
    assert server.render("{{ messages[0].content }}") == "Hi"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_template_is_refused_in_one_line_that_says_why(name: str, patient_server: Server) -> None:
    source, reason = WRONG[name]
    text = patient_server.attack(source)
    assert text.startswith("refused: ")
    assert reason in text
    _check_message(text)


@pytest.mark.parametrize("name", CURIOUS)
def test_a_template_that_looks_for_python_finds_nothing(name: str, patient_server: Server) -> None:
    text = patient_server.attack(CURIOUS[name])
    if text.startswith("refused: "):
        _check_message(text)
    else:
        assert text in ("", "[Undefined]")
