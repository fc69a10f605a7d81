"""What a server of the demo model tells whoever has started it."""

import io
import json
import logging
import re

import pytest
from rich.console import Console

from stentor.protocols.ipc.actors import EngineReady
from stentor.server.app.startup import first_steps, report_ready
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import in_memory
from stentor.tests.server.middleware.keyrings import keyring

pytestmark = pytest.mark.anyio
READY = {"demo": EngineReady(64, 16, 512, [], [])}


@pytest.mark.parametrize("keys", [False, True])
async def test_the_command_that_is_shown_is_answered(keys: bool) -> None:
    shown = first_steps("http://server", keys=keys)
    found = re.search(r"curl (\S+)(?: -H '(\S+): ([^']+)')? -d '([^']+)'", shown)
    assert found is not None
    url, header, value, body = found.groups()
    headers = {"content-type": "application/x-www-form-urlencoded"}  # curl's own
    if keys:
        headers[header] = value.replace("KEY", "secret")
    access = AccessControl(keyring("secret")) if keys else None
    async with in_memory(fake_state(access=access)) as client:
        answer = await client.post(url, content=body, headers=headers)
        page = await client.get("http://server/")
    assert answer.status_code == 200, answer.text
    assert "Hello!" in json.loads(body)["messages"][0]["content"]
    assert page.status_code == 200


def test_a_terminal_shows_it_and_a_log_does_not(caplog: pytest.LogCaptureFixture) -> None:
    hint = first_steps("http://127.0.0.1:8000", keys=False)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=40)
    with caplog.at_level(logging.INFO):
        report_ready(terminal, READY, {}, "http://127.0.0.1:8000", 1.0, hint)
        report_ready(None, READY, {}, "http://127.0.0.1:8000", 1.0, hint)
    assert isinstance(terminal.file, io.StringIO)
    assert hint in terminal.file.getvalue(), "a line is not broken, so that it can be copied"
    assert "curl" not in caplog.text
