"""Uploads by clients that mean no good: odd names, slow ones, too many at a time."""

import errno
import sqlite3
from collections.abc import AsyncIterator

import anyio
import httpx
import pytest

from stentor.protocols.common.limits import Limits
from stentor.server.config.config import StoreConfig
from stentor.server.config.limits import OverloadConfig
from stentor.server.storage import files
from stentor.server.storage.opening import make_store
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import in_memory, on_loopback

pytestmark = pytest.mark.anyio

HEADERS = {"content-type": "multipart/form-data; boundary=z"}


def form(name: bytes, content: bytes = b"hello") -> bytes:
    return (
        b'--z\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        b'--z\r\ncontent-disposition: form-data; name="file"; filename="'
        + name
        + b'"\r\n\r\n'
        + content
        + b"\r\n--z--\r\n"
    )


@pytest.mark.parametrize(
    ("charset", "name"),
    [
        ("unicode_escape", b"\\ud800"),
        ("utf-7", b"+2AA-"),
        ("idna", b"xn--" + b"a" * 3000),
        ("punycode", b"x-" + b"9" * 3000),
        ("undefined", b"x"),
        ("utf-16", b"\x00\xd8"),
        ("hex", b"zz"),
        ("utf-8", b"../../\x00\xff"),
    ],
)
async def test_a_name_in_whatever_charset_is_no_error_of_the_server(charset: str, name: bytes) -> None:
    async with in_memory(fake_state()) as client:
        headers = {"content-type": f"multipart/form-data; charset={charset}; boundary=z"}
        answer = await client.post("/v1/files", content=form(name), headers=headers)
        assert answer.status_code in (200, 400), answer.text
        assert (await client.get("/v1/files")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"--z\r\nx: " + b"a" * 1_000_000,
        b"--z\r\n" + b"a: b\r\n" * 10_000,
        b'--z\r\ncontent-disposition: form-data; name="f"\r\n\r\n\r\n' * 50 + b"--z--",
        b'--z\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n\r\n' * 5 + b"--z--",
    ],
)
async def test_a_bomb_of_headers_or_parts_is_refused(body: bytes) -> None:
    async with in_memory(fake_state()) as client:
        answer = await client.post("/v1/files", content=body, headers=HEADERS)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


async def test_an_upload_that_does_not_come_in_time_is_given_up() -> None:
    state = fake_state(limits=Limits(body_timeout=0.2), storing=StoreConfig(max_file_bytes=1 << 20))

    async def slowly() -> AsyncIterator[bytes]:
        yield form(b"x", b"y" * 100_000)[:-50_000]
        await anyio.sleep(1)
        yield b"y"

    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/v1/files", content=slowly(), headers=HEADERS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "request_timeout")
    assert state.admission.memory.bytes == 0


async def test_uploads_share_the_room_of_all_that_is_held() -> None:
    state = fake_state(overload=OverloadConfig(max_inflight_bytes=600_000))
    whole = form(b"x", b"y" * 250_000)
    half = anyio.Event()

    async def in_halves() -> AsyncIterator[bytes]:
        yield whole[:200_000]
        await half.wait()
        yield whole[200_000:]

    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        answers: list[httpx.Response] = []

        async def first() -> None:
            answers.append(await client.post("/v1/files", content=in_halves(), headers=HEADERS))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            with anyio.fail_after(60):
                while not state.admission.memory.bytes:
                    await anyio.sleep(0.01)
            refused = await client.post("/v1/files", content=form(b"x", b"y" * 290_000), headers=HEADERS)
            half.set()
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "memory_full")
        assert answers[0].status_code == 200
    assert state.admission.memory.bytes == 0


async def test_what_a_client_did_not_finish_is_not_kept() -> None:
    state = fake_state()

    async def broken() -> AsyncIterator[bytes]:
        yield form(b"x", b"y" * 3_000_000)[:-100_000]
        raise OSError("gone")

    async with on_loopback(state) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            with pytest.raises(OSError, match="gone"):
                await client.post("/v1/files", content=broken(), headers=HEADERS)
        with anyio.fail_after(60):
            while state.admission.memory.bytes:
                await anyio.sleep(0.01)
    async with in_memory(state) as client:
        assert (await client.get("/v1/files")).json()["data"] == []


async def test_files_are_read_while_nothing_can_be_written() -> None:
    state = fake_state()
    async with in_memory(state) as client:
        name = (await client.post("/v1/files", content=form(b"x"), headers=HEADERS)).json()["id"]
        await state.store.read(lambda db: db.execute("PRAGMA query_only = ON"))  # as on a full disk
        assert (await client.get(f"/v1/files/{name}/content")).content == b"hello"
        refused = await client.post("/v1/files", content=form(b"x"), headers=HEADERS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "store_failed")


async def test_a_full_disk_is_told_as_such_and_leaves_nothing_behind() -> None:
    state = fake_state()
    async with in_memory(state) as client:
        await client.post("/v1/files", content=form(b"x"), headers=HEADERS)
        await state.store.read(
            lambda db: db.execute(
                f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0] + 100}"
            ).fetchone()
        )
        refused = await client.post("/v1/files", content=form(b"y", b"y" * 900_000), headers=HEADERS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk_full")
        assert refused.headers["x-should-retry"] == "false"
        (kept,) = (await client.get("/v1/files")).json()["data"]
        assert kept["filename"] == "x"
        assert (await client.delete(f"/v1/files/{kept['id']}")).status_code == 200


async def test_a_full_disk_under_a_large_upload_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", full)
    state = fake_state()
    async with in_memory(state) as client:
        refused = await client.post("/v1/files", content=form(b"y", b"y" * 3_000_000), headers=HEADERS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk_full")
        assert (await client.get("/v1/files")).json()["data"] == []
    assert state.admission.memory.bytes == 0


async def test_an_upload_that_no_folder_takes_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Simulates a read-only file system."""

    def refused(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", refused)
    async with in_memory(fake_state()) as client:
        answer = await client.post("/v1/files", content=form(b"y", b"y" * 3_000_000), headers=HEADERS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "store_failed")
    assert "No usable temporary directory found" in caplog.text
    assert "No usable" not in answer.text


async def test_a_file_that_the_store_has_no_room_for_is_refused_before_any_of_it_is_kept() -> None:
    state = fake_state(store=make_store(StoreConfig(max_bytes=500_000)))
    async with in_memory(state) as client:
        await client.post("/v1/files", content=form(b"x", b"x" * 300_000), headers=HEADERS)
        refused = await client.post("/v1/files", content=form(b"y", b"y" * 900_000), headers=HEADERS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "store_full")
        (kept,) = (await client.get("/v1/files")).json()["data"]
        assert (kept["filename"], kept["bytes"]) == ("x", 300_000)


async def test_a_file_is_seen_only_once_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    state = fake_state()
    seen: list[tuple[int, list[str], list[str]]] = []
    append = files.append

    def looked_at(db: sqlite3.Connection, file: str, place: int, data: bytes) -> None:
        append(db, file, place, data)
        for newest_first in (False, True):
            listed = files.listed(db, "", limit=9, after=None, newest_first=newest_first)
            seen.append((place, [each.name for each in listed or ()], [file] if files.find(db, "", file) else []))

    async with in_memory(state) as client:
        await client.post("/v1/files", content=form(b"x"), headers=HEADERS)
        monkeypatch.setattr(files, "append", looked_at)
        content = b"y" * (files.PART_BYTES + 1)
        (await client.post("/v1/files", content=form(b"y", content), headers=HEADERS)).raise_for_status()
        assert seen == [(0, ["x"], [])] * 2 + [(1, ["x"], [])] * 2
        listed = (await client.get("/v1/files")).json()["data"]
        assert [(each["filename"], each["bytes"]) for each in listed] == [("y", len(content)), ("x", 5)]


async def test_a_file_that_is_deleted_while_it_is_kept_is_not_said_to_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = fake_state()
    finish = files.finish

    def deleted_first(db: sqlite3.Connection, file: str) -> files.StoredFile | None:
        files.delete(db, "", file)
        return finish(db, file)

    monkeypatch.setattr(files, "finish", deleted_first)
    async with in_memory(state) as client:
        refused = await client.post("/v1/files", content=form(b"x"), headers=HEADERS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "file_not_found")
