"""Paths of llama.cpp's server that lead to endpoints with other names."""

import pytest

from stentor.server.http.path_aliases import ALIASES
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import HELLO, in_memory
from stentor.tests.server.middleware.keyrings import keyring

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_every_other_path_answers_as_its_endpoint_does(prefix: str) -> None:
    async with in_memory(fake_state(access=AccessControl(root_path=prefix))) as http:
        for alias, path in ALIASES.items():
            for method in ("GET", "POST"):
                mine, theirs = [await http.request(method, prefix + name, json={}) for name in (alias, path)]
                assert mine.status_code == theirs.status_code, (method, alias)
                assert "unknown_url" not in theirs.text, path
        chat = await http.post(f"{prefix}/chat/completions", json={"messages": HELLO, "max_tokens": 1})
        assert chat.json()["object"] == "chat.completion"


async def test_another_path_needs_a_key_exactly_if_its_endpoint_does() -> None:
    async with in_memory(fake_state(access=AccessControl(keyring("key")))) as http:
        for alias, path in ALIASES.items():
            assert (await http.get(alias)).status_code == (200 if path == "/health" else 401), alias
