"""The process that renders foreign templates is killed from outside, and nobody notices."""

import asyncio
import os
import signal
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from stentor.loadtest.processes import alive
from stentor.server.common.errors import ServerError
from stentor.server.sandbox.killable_child import ChildNotStarted, Starved
from stentor.server.text.errors import TemplateError
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.templates import template_process
from stentor.server.text.templates.template_child import MAX_COMPILED, Renderer
from stentor.server.text.templates.template_process import RenderJob, Setup, TemplateProcess
from stentor.tests.fakes import byte_tokenizer

OPTIONS: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": False}
BUSY = "{% set ns = namespace(n=0) %}{% for i in range(3000) %}{% set ns.n = ns.n + i %}{% endfor %}"
"""Some milliseconds of work."""


def _message(number: int) -> dict[str, str]:
    return {"role": "user", "content": str(number)}


def test_a_child_that_is_killed_under_load_costs_no_job() -> None:
    async def main() -> None:
        pool = TokenizerPool(byte_tokenizer())
        done = 0

        async def render(number: int) -> None:
            nonlocal done
            template = BUSY + "{{ messages[0].content }}"
            assert await pool.render_chat([_message(number)], chat_template=template, **OPTIONS) == list(
                str(number).encode()
            )
            done += 1

        jobs = [asyncio.create_task(render(number)) for number in range(30)]
        killed: list[int] = []
        while len(killed) < 4:
            before = done
            while done < before + 3:  # so that none is hit twice
                await asyncio.sleep(0.002)
            pid = pool._foreign.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        await asyncio.gather(*jobs)
        assert len(set(killed)) == 4
        assert not any(map(alive, killed))
        pool.close()

    asyncio.run(main())


def _job(template: str) -> RenderJob:
    return RenderJob([_message(7)], template)


def test_the_child_can_open_nothing_and_take_a_gigabyte() -> None:
    process = TemplateProcess({}, 5.0, 1000)
    process.render(_job("none"))
    limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
    found = {line[:26].strip(): line[26:].split()[:2] for line in limits}
    assert found["Max open files"] == ["1", "1"]
    assert found["Max address space"] == [str(1 << 30)] * 2
    process.close()


def test_what_jinja_imports_late_and_the_time_zone_are_there_in_the_child() -> None:
    process = TemplateProcess({}, 5.0, 10_000)
    shown = process.render(_job("{{ messages | pprint }} {{ lipsum(n=1, html=false) | length > 9 }}"))
    assert shown == "[{'content': '7', 'role': 'user'}] True"
    assert process.render(_job("{{ strftime_now('%Z') }}")) == datetime.now().strftime("%Z")
    with pytest.raises(TemplateError, match="ZeroDivisionError"):
        process.render(_job("{{ 1 // 0 }}"))
    process.close()


def test_memory_that_is_not_there_is_named_as_the_reason_and_the_child_goes_on() -> None:
    process = TemplateProcess({}, 30.0, 1000)
    process.render(_job("none"))
    pid = process.pid
    with pytest.raises(TemplateError, match="needs too much memory"):
        process.render(_job("{{ 'a'.ljust(10 ** 10) }}"))
    assert process.render(_job("one")) == "one"
    assert process.pid == pid
    process.close()


def test_compiled_templates_are_kept_in_bounds() -> None:
    renderer = Renderer(Setup({}, 5.0, 1000))
    for number in range(3 * MAX_COMPILED):
        for _ in range(2):
            assert renderer.render(_job(f"{{{{ 1 }}}}{number}")) == (f"1{number}", None)
    info = renderer.template_of.cache_info()
    assert (info.currsize, info.hits) == (MAX_COMPILED, 3 * MAX_COMPILED)


def test_a_child_that_died_between_two_jobs_is_replaced() -> None:
    process = TemplateProcess({}, 5.0, 1000)
    assert process.render(_job("one")) == "one"
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert process.render(_job("two")) == "two"
    assert process.pid not in (None, first)
    process.close()


def test_a_job_that_two_children_did_not_survive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    process = TemplateProcess({}, 60.0, 1000)
    process._start_seconds = 600.0  # on a busy machine, too, it is the job that the second one dies of
    process.render(_job("none"))
    received = vars(template_process)["receive"]
    calls = 0

    def receive(connection: socket.socket, kind: Any, deadline: float) -> Any:
        """The second child greets in between, and is not killed before it has the job."""
        nonlocal calls
        calls += 1
        if calls in (1, 3):
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        return received(connection, kind, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(template_process, "receive", receive)
        with pytest.raises(TemplateError, match="nested too deeply, or needs too much memory"):
            process.render(_job(BUSY * 100))
    assert calls == 3
    assert process.render(_job("three")) == "three"
    process.close()


def test_a_child_that_had_no_time_is_not_the_templates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    process = TemplateProcess({}, 30.0, 1000)
    process.render(_job("none"))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(template_process, "_PATIENCE", 0.01)
        with pytest.raises(Starved):
            process.render(_job("one"))
    assert process.render(_job("two")) == "two"
    process.close()


def test_a_child_that_ends_at_once_is_not_the_templates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    process = TemplateProcess({}, 5.0, 1000)
    monkeypatch.setattr(process, "_module", "stentor.server.text.no_such_module")
    with pytest.raises(ChildNotStarted, match="it ended at once"):
        process.render(_job("one"))


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [(Starved(), 429, "templates_full"), (ChildNotStarted("no process"), 503, "templates_unavailable")],
)
def test_the_client_is_told_that_the_server_is_to_blame(
    failure: Exception, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> str:
        raise failure

    async def main() -> None:
        pool = TokenizerPool(byte_tokenizer())
        monkeypatch.setattr(pool._foreign, "render", fails)
        with pytest.raises(ServerError) as told:
            await pool.render_chat([_message(7)], chat_template="one", **OPTIONS)
        assert (told.value.status, told.value.code) == (status, code)
        pool.close()

    asyncio.run(main())
