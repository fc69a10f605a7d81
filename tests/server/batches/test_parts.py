"""Files that come in parts, through the SDK: whole or not at all, in the order that the client says, within bounds."""

import hashlib
import io
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import FileObject, Upload
from openai.types.uploads import UploadPart

from stentor.server.api.files_and_batches import uploads
from stentor.server.app.state import ServerState
from stentor.server.common.keys import KeyDigest, Keyring
from stentor.server.config.config import StoreConfig
from stentor.server.middleware.access_control import AccessControl
from stentor.server.storage import files
from stentor.server.storage import uploads as table
from stentor.server.storage.clock import StoreClock
from stentor.server.storage.database import Database
from stentor.server.storage.opening import TABLES, make_store
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import in_memory, sdk
from stentor.tests.wire.validate import check_object

pytestmark = pytest.mark.anyio
KEYS = AccessControl(Keyring((KeyDigest(b"one"), KeyDigest(b"two")), ()))
DATA = bytes(range(256)) * 2500
"""More than two parts of the store's."""


async def begun(client: openai.AsyncOpenAI, size: int, **fields: Any) -> str:
    given: dict[str, Any] = {"filename": "a.bin", "purpose": "user_data", "mime_type": "text/plain", **fields}
    return (await client.uploads.create(bytes=size, **given)).id


async def rows(state: ServerState) -> list[int]:
    """How many there are of uploads, of parts, and of their data."""
    tables = ("uploads", "upload_parts", "upload_data")
    return [
        await state.store.read(lambda db, at=table: db.execute(f"SELECT COUNT(*) FROM {at}").fetchone()[0])  # type: ignore[misc]
        for table in tables
    ]


async def charged(state: ServerState) -> int:
    return await state.store.read(
        lambda db: int(db.execute("SELECT COALESCE(SUM(bytes), 0) FROM owners").fetchone()[0])
    )


async def test_the_parts_become_a_file_in_the_order_that_is_asked_for() -> None:
    state = fake_state()
    async with sdk(state) as client:
        upload = await client.uploads.create(
            bytes=len(DATA), filename="a.bin", purpose="user_data", mime_type="application/octet-stream"
        )
        assert (upload.status, upload.bytes, upload.filename, upload.file) == ("pending", len(DATA), "a.bin", None)
        assert upload.expires_at - upload.created_at == 3600
        second = await client.uploads.parts.create(upload.id, data=DATA[300_000:])
        unused = await client.uploads.parts.create(upload.id, data=b"")
        first = await client.uploads.parts.create(upload.id, data=DATA[:300_000])
        assert second.upload_id == upload.id
        md5 = hashlib.md5(DATA).hexdigest()
        done = await client.uploads.complete(upload.id, part_ids=[first.id, second.id], md5=md5)
        assert (done.status, done.id, unused.object) == ("completed", upload.id, "upload.part")
        assert done.file is not None
        assert (done.file.bytes, done.file.filename, done.file.purpose) == (len(DATA), "a.bin", "user_data")
        assert (await client.files.content(done.file.id)).content == DATA
        assert await client.files.retrieve(done.file.id) == done.file
        assert await rows(state) == [1, 0, 0]
        # a client that did not hear of it asks again
        assert await client.uploads.complete(upload.id, part_ids=[first.id, second.id]) == done
        for late in (client.uploads.parts.create(upload.id, data=b"x"), client.uploads.cancel(upload.id)):
            with pytest.raises(openai.BadRequestError, match="has been completed"):
                await late


async def test_the_sdk_cuts_a_file_into_parts_by_itself() -> None:
    async with sdk(fake_state()) as client:
        done = await client.uploads.upload_file_chunked(
            file=DATA, filename="b.jsonl", bytes=len(DATA), mime_type="text/jsonl", purpose="batch", part_size=250_000
        )
        assert done.file is not None
        assert (await client.files.content(done.file.id)).content == DATA


async def test_what_is_sent_is_what_the_sdk_declares() -> None:
    async with in_memory(fake_state()) as client:
        body = {"filename": "a", "purpose": "batch", "bytes": 1, "mime_type": "text/plain"}
        name = check_object(Upload, (await client.post("/v1/uploads", json=body)).content).id
        sent = await client.post(f"/v1/uploads/{name}/parts", files={"data": ("x", b"x")})
        part = check_object(UploadPart, sent.content).id
        done = await client.post(f"/v1/uploads/{name}/complete", json={"part_ids": [part]})
        upload = check_object(Upload, done.content)
        assert isinstance(upload.file, FileObject)


async def test_nothing_is_left_of_an_upload_that_is_cancelled() -> None:
    state = fake_state()
    async with sdk(state) as client:
        name = await begun(client, len(DATA))
        await client.uploads.parts.create(name, data=DATA)
        assert await charged(state) > len(DATA)
        assert (await client.uploads.cancel(name)).status == "cancelled"
        assert (await rows(state), await charged(state)) == ([0, 0, 0], 0)
        for gone in (
            client.uploads.cancel(name),
            client.uploads.parts.create(name, data=b"x"),
            client.uploads.complete(name, part_ids=["part_1"]),
        ):
            with pytest.raises(openai.NotFoundError):
                await gone


async def test_an_upload_ends_after_an_hour_and_a_file_when_it_was_to() -> None:
    now = [1000.0]
    store = Database(TABLES, clock=StoreClock(lambda: now[0], lambda: now[0]))
    state = fake_state(store=store)
    async with sdk(state) as client:
        given: Any = {"anchor": "created_at", "seconds": 7200}
        kept = await client.files.create(file=("a", b"x"), purpose="user_data", expires_after=given)
        whole = await begun(client, 2, expires_after=given)
        two = await client.uploads.parts.create(whole, data=b"yy")
        done = await client.uploads.complete(whole, part_ids=[two.id])
        assert done.file is not None
        for file in (kept, done.file):
            assert file.expires_at == file.created_at + 7200
        for_ever = await client.files.create(file=("a", b"x"), purpose="user_data")
        assert for_ever.expires_at is None
        name = await begun(client, 5)
        part = await client.uploads.parts.create(name, data=b"hello")
        now[0] += 3599
        assert await client.files.retrieve(kept.id) == kept
        now[0] += 2
        with pytest.raises(openai.NotFoundError):
            await client.uploads.complete(name, part_ids=[part.id])
        now[0] += 10
        assert await rows(state) == [0, 0, 0]
        now[0] += 3590
        assert [file.id async for file in client.files.list()] == [for_ever.id]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bytes": 0}, "bytes"),
        ({"bytes": 2**70}, "bytes"),
        ({"bytes": 1001}, "bytes"),
        ({"purpose": "fine-tune"}, "purpose"),
        ({"filename": ""}, "filename"),
        ({"filename": "x" * 600}, "filename"),
        ({"mime_type": "x" * 600}, "mime_type"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "expires_after.anchor"),
        ({"expires_after": {"anchor": "created_at", "seconds": 60}}, "expires_after.seconds"),
    ],
)
async def test_an_upload_that_cannot_be_is_refused_before_anything_comes(fields: dict[str, Any], param: str) -> None:
    state = fake_state(storing=StoreConfig(max_file_bytes=1000))
    async with in_memory(state) as client:
        body = {"filename": "a", "purpose": "batch", "bytes": 1, "mime_type": "text/plain", **fields}
        refused = await client.post("/v1/uploads", json=body)
    assert (refused.status_code in (400, 413), refused.json()["error"]["param"]) == (True, param)


async def test_parts_that_do_not_make_the_file_are_refused_and_can_be_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_PARTS", 3)
    state = fake_state()
    async with sdk(state) as client:
        name, other = await begun(client, 10), await begun(client, 5)
        first, second = [(await client.uploads.parts.create(name, data=data)).id for data in (b"01234", b"56789")]
        foreign = (await client.uploads.parts.create(other, data=b"01234")).id
        wrong: list[dict[str, Any]] = [
            {"part_ids": []},
            {"part_ids": [first]},
            {"part_ids": [first, first]},
            {"part_ids": [first, foreign]},
            {"part_ids": [first, "part_1"]},
            {"part_ids": [second, first], "md5": hashlib.md5(b"0123456789").hexdigest()},
            {"part_ids": [first, second], "md5": "nonsense"},
        ]
        for body in wrong:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.uploads.complete(name, **body)
            assert refused.value.param == ("md5" if "md5" in body else "part_ids")
        for data in (b"x", b"x" * 20, b"x" * 100_000):
            with pytest.raises(openai.APIStatusError) as refused_part:
                await client.uploads.parts.create(name, data=data)
            assert refused_part.value.code == "file_too_large"
        await client.uploads.parts.create(name, data=b"")
        with pytest.raises(openai.BadRequestError, match="3 at most"):
            await client.uploads.parts.create(name, data=b"")
        assert [file async for file in client.files.list()] == []
        done = await client.uploads.complete(name, part_ids=[first, second])
        assert done.file is not None
        assert (await client.files.content(done.file.id)).content == b"0123456789"


async def test_another_key_has_no_part_in_it() -> None:
    state = fake_state(access=KEYS)
    async with sdk(state, "one") as owner, sdk(state, "two") as other:
        name = await begun(owner, 5)
        part = (await owner.uploads.parts.create(name, data=b"hello")).id
        for asked in (
            other.uploads.parts.create(name, data=b"x"),
            other.uploads.complete(name, part_ids=[part]),
            other.uploads.cancel(name),
        ):
            with pytest.raises(openai.NotFoundError):
                await asked
        mine = await begun(other, 5)
        with pytest.raises(openai.BadRequestError, match="no part of this upload"):
            await other.uploads.complete(mine, part_ids=[part])
        assert (await owner.uploads.complete(name, part_ids=[part])).status == "completed"


async def test_a_server_that_dies_leaves_whole_parts_and_no_half_ones(tmp_path: Path) -> None:
    config = StoreConfig(tmp_path / "store.db")
    store = make_store(config)
    async with sdk(fake_state(store=store)) as client:
        name = await begun(client, len(DATA))
        part = (await client.uploads.parts.create(name, data=DATA)).id
        # as far as a server may have come with another part, and with the file
        await store.write(lambda db: table.begin_part(db, name, table.StoredPart("part_half", 7)))
        await store.write(lambda db: table.append(db, "part_half", 0, b"123"))
        await store.write(lambda db: files.begin(db, "", "file-half", "batch", "x", size=9))
    await store.close()
    store = make_store(config)
    state = fake_state(store=store)
    async with sdk(state) as client:
        assert await rows(state) == [1, 1, 3]
        assert [file async for file in client.files.list()] == []
        done = await client.uploads.complete(name, part_ids=[part])
        assert done.file is not None
        assert (await client.files.content(done.file.id)).content == DATA
    await store.close()


async def test_a_part_that_is_no_form_says_what_it_should_be() -> None:
    async with in_memory(fake_state()) as client:
        body = {"filename": "a", "purpose": "batch", "bytes": 9, "mime_type": ""}
        name = (await client.post("/v1/uploads", json=body)).json()["id"]
        sent: list[dict[str, Any]] = [
            {"json": {"data": "x"}},
            {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
            {"files": {"file": ("a", b"x")}},
            {"data": {"data": "x"}, "files": {"other": ("a", io.BytesIO(b"x"))}},
        ]
        for given in sent:
            refused = await client.post(f"/v1/uploads/{name}/parts", **given)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "data"), given
