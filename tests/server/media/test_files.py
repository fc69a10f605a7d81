"""Files in messages: as texts and pictures, whose errors name the part; and where they are loaded from."""

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.server.config.config import StoreConfig
from stentor.server.media.collect import TEXT_ONLY, collect_media
from stentor.server.media.decoding.documents import Page
from stentor.server.media.fetching.fetcher import Fetcher
from stentor.server.media.fetching.loading import MediaLoader
from stentor.server.media.files import has_files, read_files
from stentor.server.media.parts import Media, MediaPart
from stentor.server.media.refusal import Refusal
from stentor.server.storage import files
from stentor.server.storage.database import Database
from stentor.server.storage.opening import make_store
from stentor.tests.server.media.web import answer, fetcher, says, serving

pytestmark = pytest.mark.anyio

TEXT = {"type": "text", "text": "a"}
PNG = b"\x89PNG\r\n\x1a\n..."
MOST = 1000


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def file(data: bytes = b"", **fields: Any) -> dict[str, Any]:
    inline = {"file_data": base64.b64encode(data).decode()} if data else {}
    return {"type": "file", "file": {**inline, **fields}}


async def load(url: str, name: str, param: str) -> Media:
    assert not name
    return await fetcher().fetch(url, param)


async def read_pdf(data: bytes) -> Sequence[Page]:
    if data.endswith(b"broken"):
        raise Refusal("the document is broken")
    return [Page("one"), Page("two"), Page("", b"jpeg"), Page("three")]


async def told(*messages: dict[str, Any], most: int = MOST) -> list[dict[str, Any]]:
    return await read_files(messages, load, read_pdf, most)


async def test_a_plain_text_is_text_under_its_name() -> None:
    given = [user(TEXT, file("grüße".encode(), filename="a.txt"), TEXT), {"role": "assistant", "content": "b"}]
    messages = await told(*given)
    assert messages[0] == user(TEXT, {"type": "text", "text": "a.txt\n\ngrüße"}, TEXT)
    assert messages[1] is given[1]
    assert has_files(given)
    assert not has_files(messages)


async def test_pages_are_texts_joined_and_pictures_between() -> None:
    (message,) = await told(user(file(b"%PDF-1.7")))
    assert message["content"] == [
        {"type": "text", "text": "one\n\ntwo"},
        {
            "type": "image_url",
            "image_url": {"url": "data:image/jpeg;base64,anBlZw=="},
            "_field": "messages[0].content[0]",
        },
        {"type": "text", "text": "three"},
    ]
    with pytest.raises(BadRequest, match="the model takes no images") as refused:
        collect_media([message], TEXT_ONLY)
    assert refused.value.param == "messages[0].content[0]", "the file, which is what the client knows"


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        (
            [Page("", b"jpeg"), Page("", b"jpeg")],
            "its pages have no text, only pictures of it, and the model cannot see",
        ),
        ([Page("a"), Page("", b"jpeg")], "page 2 has no text, only a picture of it, and the model cannot see"),
        ([Page("a"), *[Page("", b"jpeg")] * 9], "pages 2, 3, 4, 5, 6, 7, 8, 9 and others have no text"),
    ],
)
async def test_pages_without_text_are_refused_where_the_model_cannot_see(pages: list[Page], why: str) -> None:
    async def scanned(data: bytes) -> Sequence[Page]:
        return pages

    messages = [user(TEXT, file(b"%PDF-1.7"))]
    with pytest.raises(BadRequest, match=why) as refused:
        await read_files(messages, load, scanned, MOST, sees=False)
    assert (refused.value.param, refused.value.code) == ("messages[0].content[1].file.file_data", "unsupported")
    await read_files(messages, load, scanned, MOST)


async def test_pages_of_text_need_no_model_that_sees() -> None:
    async def written(data: bytes) -> Sequence[Page]:
        return [Page("a"), Page("b")]

    (message,) = await read_files([user(file(b"%PDF-1.7"))], load, written, MOST, sees=False)
    assert message["content"] == [{"type": "text", "text": "a\n\nb"}]


async def test_a_picture_behind_a_file_keeps_its_place_in_errors() -> None:
    (message,) = await told(user(file(b"%PDF-1.7"), {"type": "image_url", "image_url": {"url": "https://a.test/"}}))
    assert message["content"][3]["_field"] == "messages[0].content[1]"


async def test_a_picture_among_files_is_a_picture() -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    (message,) = await told(user(file(file_data=url, filename="a.png")))
    assert message["content"][0]["image_url"] == {"url": url}


async def test_what_a_host_calls_a_picture_cannot_change_how_it_is_read() -> None:
    async with serving(says(answer(PNG, content_type="image/x,y"))) as web:
        loaded = partial(_loaded, fetcher(web))
        (message,) = await read_files([user(file(file_url=web.url()))], loaded, read_pdf, MOST)
    assert message["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")


async def _loaded(fetching: Fetcher, url: str, _name: str, param: str) -> Media:
    return await fetching.fetch(url, param)


@pytest.mark.parametrize(
    ("part", "field", "code"),
    [
        (file(b"%PDF-1.7 broken"), ".file.file_data", "media_refused"),
        (file(b"PK\3\4\0\0"), ".file.file_data", "media_refused"),
        (file(b"\xff\xfe\xff"), ".file.file_data", "media_refused"),
        (file(file_data="no base64"), ".file.file_data", "media_refused"),
        (file(file_url="ftp://x.test/"), ".file.file_url", "media_refused"),
        ({**file(b"\xff"), "_field": "input[3].content[0]"}, None, "media_refused"),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_by_its_field(
    part: dict[str, Any], field: str | None, code: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await told(user(TEXT), user(TEXT, part))
    where = "input[3].content[0]" if field is None else f"messages[1].content[1]{field}"
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, where, code)
    assert where in refused.value.message


async def test_texts_of_files_count_as_texts_of_messages_do() -> None:
    with pytest.raises(BadRequest, match="characters") as refused:
        await told(user(file(b"a" * 11)), most=10)
    assert refused.value.param == "messages"


# ---- where they lie


async def kept(store: Database, data: bytes, owner: str = "me", name: str = "a.png") -> str:
    file = f"file-{name}"
    await store.write(partial(files.begin, owner=owner, file=file, purpose="user_data", name=name))
    for place in range(0, len(data), files.PART_BYTES):
        piece = data[place : place + files.PART_BYTES]
        await store.write(partial(files.append, file=file, place=place // files.PART_BYTES, data=piece))
    await store.write(partial(files.finish, file=file))
    return file


async def test_a_stored_file_is_its_owner_s_alone() -> None:
    store = make_store(StoreConfig())
    try:
        data = PNG + bytes(files.PART_BYTES)
        name = await kept(store, data)
        loader = MediaLoader(fetcher(), store, len(data))
        part = MediaPart("image", "", "p", file=name)
        assert await loader.load(part, "me") == Media(data, "image/png")
        for owner, wanted in (("another", name), ("me", "file-none")):
            with pytest.raises(BadRequest, match="there is no file") as refused:
                await loader.named("", wanted, "p", owner)
            assert (refused.value.status, refused.value.param) == (404, "p")
        with pytest.raises(BadRequest, match="at most 10") as large:
            await MediaLoader(fetcher(), store, 10).load(part, "me")
        assert large.value.code == "media_too_large"
    finally:
        await store.close()


async def test_what_has_an_address_is_fetched_and_what_has_only_a_name_is_not_known() -> None:
    store = make_store(StoreConfig())
    try:
        async with serving(says(answer(PNG, content_type="image/png"))) as web:
            loader = MediaLoader(fetcher(web), store, 100)
            assert await loader.load(MediaPart("image", web.url(), "p"), "me") == Media(PNG, "image/png")
        with pytest.raises(BadRequest, match="uuid") as refused:
            await loader.load(MediaPart("image", "", "p", "u"), "me")
        assert refused.value.param == "p"
    finally:
        await store.close()
