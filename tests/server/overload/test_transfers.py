"""Files on their way when the server is told to end: waited for, and told apart from whole ones where they are cut."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from stentor.server.app.state import ServerState
from stentor.server.observability.observer import Observer, log_request, open_access_log
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import on_loopback, until

pytestmark = pytest.mark.anyio

FILE = bytes(16 << 20)
"""More than the sockets of a connection hold between them."""


@pytest.fixture
def state() -> ServerState:
    open_access_log()
    return fake_state(observer=Observer([log_request]))


@asynccontextmanager
async def downloading(state: ServerState) -> AsyncIterator[asyncio.StreamReader]:
    """The body of a file that its client does not read yet."""
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        upload = {"files": {"file": ("big", FILE)}, "data": {"purpose": "user_data"}}
        id = (await client.post("/v1/files", **upload)).json()["id"]  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=1 << 16)
        writer.write(f"GET /v1/files/{id}/content HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        try:
            yield reader
        finally:
            writer.close()


@asynccontextmanager
async def uploading(state: ServerState) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A form of which the last byte has not been sent yet."""
    async with on_loopback(state) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: %d\r\n"
            b"content-type: multipart/form-data; boundary=z\r\n\r\n" % len(FORM)
        )
        writer.write(FORM[:-1])
        await until(lambda: state.admission.live_requests)
        try:
            yield reader, writer
        finally:
            writer.close()


FORM = (
    b'--z\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--z\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nhello\r\n--z--\r\n'
)


def cut(state: ServerState) -> float | None:
    return state.metrics.registry.get_sample_value(
        "stentor:requests_cut_off_total", {"model_name": state.chat.config.served_names[0], "reason": "shutting_down"}
    )


async def test_a_server_that_drains_waits_for_a_download(state: ServerState) -> None:
    async with downloading(state) as reader:
        state.admission.draining = True
        assert not await state.admission.drained(0.01)
        assert await reader.read(-1) == FILE
        assert await state.admission.drained(30.0)


async def test_a_server_that_drains_waits_for_an_upload(state: ServerState) -> None:
    async with uploading(state) as (reader, writer):
        state.admission.draining = True
        assert not await state.admission.drained(0.01)
        writer.write(FORM[-1:])
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        assert await state.admission.drained(30.0)


async def test_a_download_that_is_cut_off_is_short_and_counted_and_logged_as_cut(
    state: ServerState, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with downloading(state) as reader:
        state.admission.cut_off()
        assert await state.admission.drained(30.0)
        assert len(await reader.read(-1)) < len(FILE)
    assert cut(state) == 1
    lines = [(record.levelname, record.message.partition(" in ")[0]) for record in caplog.records]
    assert ("WARNING", "a response was cut off: The server is shutting down and had to give up the request; it may be "
            "sent again.") in lines  # fmt: skip
    (reported,) = [record.fields for record in caplog.records if "/content" in record.message]  # type: ignore[attr-defined]
    assert (reported["status"], reported["error"]) == (200, "shutting_down")
    assert not [line for line in lines if line[0] == "ERROR"], "it is no failure of ours"


async def test_an_upload_that_is_cut_off_is_told_so_and_leaves_nothing(state: ServerState) -> None:
    async with uploading(state) as (reader, _writer):
        state.admission.cut_off()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"shutting_down"' in answer
        assert await state.admission.drained(30.0)
    assert cut(state) == 1


async def test_a_server_that_drains_begins_no_transfer(state: ServerState) -> None:
    state.admission.draining = True
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        for answer in (await client.post("/v1/files"), await client.get("/v1/files/file-1/content")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert (await client.get("/v1/files")).status_code == 200
