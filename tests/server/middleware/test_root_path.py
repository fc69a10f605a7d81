"""Behind a proxy that serves us below a prefix, and passes it on or not."""

import pytest

from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import in_memory
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.server.middleware.listeners import client, serving

pytestmark = pytest.mark.anyio


async def test_paths_are_served_with_the_prefix_and_without() -> None:
    async with serving(fake_state(access=AccessControl(root_path="/llm"))) as url, client(url) as http:
        for path in ("/llm/v1/models", "/v1/models", "/llm/health", "/health", "/llm", "/llm/", "/"):
            assert (await http.get(path)).status_code == 200, path
        for path in ("/llm/llm/v1/models", "/llm/llm", "/llmv1/models", "/LLM/v1/models"):
            assert (await http.get(path)).status_code == 404, path


async def test_only_the_probes_and_the_page_are_open_whatever_the_prefix_looks_like() -> None:
    for prefix in ("/llm", "/health", "/v1", "/health/health"):
        async with in_memory(fake_state(access=AccessControl(keyring("key"), root_path=prefix))) as http:
            for path in (f"{prefix}/health", f"{prefix}/ping", "/ping", f"{prefix}/", f"{prefix}/page/app.js"):
                assert (await http.get(path)).status_code == 200, (prefix, path)
            for path in ("/v1/models", f"{prefix}/v1/models", "/metrics", f"{prefix}/metrics", f"{prefix}/page"):
                assert (await http.get(path)).status_code == 401, (prefix, path)
