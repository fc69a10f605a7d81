"""Anthropic's Files API through its SDK, beside OpenAI's on the same paths: the version header tells them apart."""

from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import DeletedFile, FileMetadata
from anthropic.types.beta import BetaFileMetadata

from stentor.server.app.application import create_app
from stentor.server.app.state import ServerState
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import StoreConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import in_memory
from stentor.tests.wire.validate import check_object

pytestmark = pytest.mark.anyio
FILES = "/v1/files"
THEIRS = {"anthropic-version": "2023-06-01", "anthropic-beta": "files-api-2025-04-14"}


def sdk(state: ServerState, key: str = "none") -> anthropic.AsyncAnthropic:
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(create_app(state)), base_url="http://test")
    return anthropic.AsyncAnthropic(base_url="http://test", api_key=key, max_retries=0, http_client=client)


async def test_a_file_is_kept_described_read_and_deleted() -> None:
    async with sdk(fake_state()) as client:
        sent = await client.files.upload(file=("a/paper.pdf", b"%PDF-1.7"))
        assert (sent.filename, sent.mime_type, sent.size_bytes) == ("paper.pdf", "application/pdf", 8)
        assert (sent.type, sent.downloadable, sent.expires_at) == ("file", True, None)
        assert await client.files.retrieve_metadata(sent.id) == sent
        assert await (await client.files.download(sent.id)).read() == b"%PDF-1.7"
        gone = await client.files.delete(sent.id)
        assert (gone.id, gone.type) == (sent.id, "file_deleted")
        for asked in (client.files.retrieve_metadata(sent.id), client.files.delete(sent.id)):
            with pytest.raises(anthropic.NotFoundError):
                await asked


async def test_what_is_sent_is_what_the_sdk_declares() -> None:
    async with in_memory(fake_state()) as client:
        sent = await client.post(FILES, files={"file": ("a.txt", b"x")}, headers=THEIRS)
        file = check_object(FileMetadata, sent.content)
        check_object(BetaFileMetadata, sent.content)
        deleted = await client.delete(f"{FILES}/{file.id}", headers=THEIRS)
        check_object(DeletedFile, deleted.content)
        missing = await client.get(f"{FILES}/{file.id}", headers=THEIRS)
        error = check_object(anthropic.types.ErrorResponse, missing.content)
        assert (missing.status_code, error.error.type) == (404, "not_found_error")
        ours = await client.get(f"{FILES}/{file.id}")
        assert ours.json()["error"]["code"] == "file_not_found"


async def test_lists_come_by_pages_or_by_id_and_without_the_files_of_batches() -> None:
    async with sdk(fake_state()) as client:
        names = [(await client.files.upload(file=(f"{number}", b"x"))).id for number in range(5)][::-1]
        request: Any = {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        await client.messages.batches.create(requests=[{"custom_id": "a", "params": request}])
        assert [each.id async for each in client.files.list(limit=2)] == names
        assert [each.id async for each in client.beta.files.list(limit=2)] == names
        wanted = [names[3], "file-gone", names[1], names[3]]
        assert [each.id async for each in client.files.list(ids=wanted)] == [names[3], names[1]]
        assert [each async for each in client.beta.files.list(scope_id="session")] == []
        for query in ({"page": "page_x"}, {"limit": 0}, {"ids": ["x"] * 101}):
            with pytest.raises(anthropic.BadRequestError):
                await client.files.list(**query)


async def test_a_file_ends_when_it_was_to() -> None:
    async with sdk(fake_state()) as client:
        sent = await client.files.upload(file=("a", b"x"), expires_in_seconds=7200)
        assert sent.expires_at is not None
        assert (sent.expires_at - sent.created_at).total_seconds() == 7200
        for seconds in (60, 10**9):
            with pytest.raises(anthropic.BadRequestError, match="expires_in_seconds"):
                await client.files.upload(file=("a", b"x"), expires_in_seconds=seconds)


async def test_both_protocols_see_the_same_files_of_a_key_and_of_no_other() -> None:
    access = AccessControl(Keyring((KeyDigest(b"one"), KeyDigest(b"two")), ()))
    state = fake_state(access=access)
    async with in_memory(state) as client, sdk(state, "one") as owner, sdk(state, "two") as other:
        body: Any = {"files": {"file": ("a.png", b"x")}, "data": {"purpose": "vision"}}
        name = (await client.post(FILES, **body, headers={"authorization": "Bearer one"})).json()["id"]
        assert (await owner.files.retrieve_metadata(name)).mime_type == "image/png"
        assert (await other.files.list()).data == []
        for asked in (other.files.retrieve_metadata(name), other.files.delete(name), other.files.download(name)):
            with pytest.raises(anthropic.NotFoundError):
                await asked


async def test_an_upload_that_cannot_be_kept_says_why_in_their_shape() -> None:
    state = fake_state(storing=StoreConfig(max_file_bytes=1000))
    async with in_memory(state) as client:
        sent: list[dict[str, Any]] = [
            {"files": {"other": ("a", b"x")}},
            {"json": {"file": "x"}},
            {"files": {"file": ("a", b"x" * 2000)}},
        ]
        for given in sent:
            refused = await client.post(FILES, **given, headers=THEIRS)
            assert refused.status_code in (400, 413)
            assert check_object(anthropic.types.ErrorResponse, refused.content).error.type == "invalid_request_error"
