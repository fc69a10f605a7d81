"""SIGHUP, sent for real."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from stentor.server.common.files import FileRefused, Reloadable, reload_on_hangup
from stentor.server.common.keys import Keyring
from stentor.tests.server.harness import until

IN_A_TERMINAL = """
import os, sys, anyio
from stentor.server.common.files import reload_on_hangup

async def main():
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reload_on_hangup, [])
        await anyio.sleep(0.1)
        os.write(int(sys.argv[1]), b"ready")
        await anyio.sleep(20)

anyio.run(main)
"""


class Part:
    """Counts, and refuses where it is told to."""

    def __init__(self, name: str, refusal: Exception | None = None) -> None:
        self.name = name
        self.reloads = 0
        self._refusal = refusal

    async def reload(self) -> str:
        self.reloads += 1
        if self._refusal is not None:
            raise self._refusal
        return f"number {self.reloads}"


@asynccontextmanager
async def reloading(*parts: Reloadable) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reload_on_hangup, parts)
        await until(lambda: callable(signal.getsignal(signal.SIGHUP)))  # ignored before, where nohup started us
        yield
        tasks.cancel_scope.cancel()


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.anyio
async def test_each_hang_up_reloads_all_parts_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first, second = Part("first"), Part("second")
    async with reloading(first, second):
        for count in (1, 2):
            hang_up()
            await until(lambda: second.reloads == count)  # noqa: B023
    assert [record.getMessage() for record in caplog.records] == [
        "reloaded first: number 1",
        "reloaded second: number 1",
        "reloaded first: number 2",
        "reloaded second: number 2",
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("refusal", [FileRefused("keys.txt: it is not UTF-8"), MemoryError("it is not UTF-8")])
async def test_one_that_is_refused_keeps_its_old_and_the_others_are_taken(
    refusal: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    broken, good = Part("keys", refusal), Part("certificates")
    async with reloading(broken, good):
        hang_up()
        await until(lambda: good.reloads)
        hang_up()
        await until(lambda: good.reloads == 2)
    assert "kept the old keys" in caplog.text
    assert "it is not UTF-8" in caplog.text


@pytest.mark.anyio
async def test_a_key_that_was_added_and_one_that_was_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("old")
    file.chmod(0o600)
    ring = Keyring(api_file=file)

    def good(key: bytes) -> bool:
        return ring.caller([(b"x-api-key", key)]) is not None

    async with reloading(ring):
        file.write_text("new")
        assert not good(b"new"), "only when told to"
        hang_up()
        await until(lambda: good(b"new"))
        assert not good(b"old")
        file.write_text("")
        hang_up()
        await until(lambda: "kept the old keys" in caplog.text)
        assert good(b"new")
    assert "new" not in caplog.text.replace("new connections", "")


@pytest.mark.parametrize("terminal_goes", [True, False])
def test_a_terminal_that_is_closed_still_ends_its_server(terminal_goes: bool) -> None:
    ours, theirs = os.openpty()
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", IN_A_TERMINAL, str(writing)],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            pass_fds=[writing],
        )
        os.close(theirs)
        os.close(writing)
        with process:
            try:
                assert os.read(reading, 5) == b"ready"
                if terminal_goes:
                    os.close(ours)
                process.send_signal(signal.SIGHUP)
                if terminal_goes:
                    assert process.wait(60) == -signal.SIGTERM
                else:
                    with pytest.raises(subprocess.TimeoutExpired):
                        process.wait(0.3)
            finally:
                process.kill()
    finally:
        os.close(reading)
        if not terminal_goes:
            os.close(ours)


@pytest.mark.anyio
async def test_reloading_blocks_nothing(tmp_path: Path) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    file = tmp_path / "keys"
    file.write_text("one")
    ring = Keyring(api_file=file)
    ticking = asyncio.create_task(tick())
    await ring.reload()
    ticking.cancel()
    assert ticks > 1
