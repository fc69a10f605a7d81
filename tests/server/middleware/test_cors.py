"""What browsers are told, and pages of which origins."""

import httpx
import pytest

from stentor.server.middleware.access_control import AccessControl
from stentor.server.middleware.origins import Origins
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import CHAT, HELLO, in_memory
from stentor.tests.server.middleware.keyrings import keyring

pytestmark = pytest.mark.anyio

APP = "https://app.example"
SDK_HEADERS = "authorization, content-type, x-stainless-lang, x-api-key, anthropic-version, openai-organization"


def server(*origins: str, key: str | None = None) -> httpx.AsyncClient:
    keys = keyring() if key is None else keyring(key)
    return in_memory(fake_state(access=AccessControl(keys, Origins(origins))))


def preflight(origin: str = APP, headers: str = SDK_HEADERS) -> dict[str, str]:
    return {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": headers}


def reported(response: httpx.Response) -> set[str]:
    return {name for name in response.headers if name.startswith("access-control-")}


async def test_nothing_is_told_unless_an_origin_is_named() -> None:
    for key, status in ((None, 403), ("key", 401)):
        async with server(key=key) as client:
            for refused in (
                await client.get("/v1/models", headers={"origin": APP}),
                await client.options(CHAT, headers=preflight()),
            ):
                assert (refused.status_code, reported(refused)) == (status, set())


async def test_a_preflight_is_answered_without_a_key_and_lists_what_sdks_send() -> None:
    async with server(APP, key="key") as client:
        answer = await client.options(CHAT, headers=preflight())
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == APP
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert "POST" in answer.headers["access-control-allow-methods"].split(", ")
        assert answer.headers["access-control-allow-headers"] == SDK_HEADERS
        assert "Origin" in answer.headers["vary"].split(", ")
        assert (await client.options(CHAT)).status_code == 401, "that is no preflight"
        assert (await client.post(CHAT, headers={"origin": APP})).status_code == 401


@pytest.mark.parametrize("origin", ["https://app.example.evil", "http://app.example", "https://APP.example", "null"])
async def test_another_origin_may_not_read_an_answer(origin: str) -> None:
    async with server(APP, "tauri://localhost", key="key") as client:
        answer = await client.get("/v1/models", headers={"origin": origin, "authorization": "Bearer key"})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "Origin", "a cache must not give it to others"
        refused = await client.options(CHAT, headers=preflight(origin))
        assert refused.status_code == 400
        assert "access-control-allow-origin" not in refused.headers
        assert (await client.options(CHAT, headers=preflight("tauri://localhost"))).status_code == 200


async def test_answers_streams_and_errors_can_be_read_by_the_page() -> None:
    async with server(APP, key="key") as client:
        headers = {"origin": APP, "authorization": "Bearer key"}
        body = {"messages": HELLO, "max_tokens": 2, "stream": True}
        stream = await client.post(CHAT, json=body, headers=headers)
        assert stream.headers["content-type"].startswith("text/event-stream")
        refused = await client.get("/v1/models", headers={"origin": APP})
        missing = await client.get("/nowhere", headers=headers)
        assert [answer.status_code for answer in (stream, refused, missing)] == [200, 401, 404]
        for answer in (stream, refused, missing):
            assert answer.headers["access-control-allow-origin"] == APP
            assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_all_origins_are_allowed_but_never_with_credentials() -> None:
    async with server("*") as client:
        for answer in (
            await client.options(CHAT, headers=preflight()),
            await client.get("/v1/models", headers={"origin": "null"}),
        ):
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers
