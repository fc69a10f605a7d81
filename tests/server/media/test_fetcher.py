"""What is open is fetched, within its bounds; a real server, opened explicitly."""

import asyncio
import gzip
import os
import ssl
import subprocess
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.server.common.errors import Overloaded
from stentor.server.media.fetching.fetcher import Fetcher
from stentor.tests.server.harness import until
from stentor.tests.server.media.web import PARAM, answer, fetcher, names, says, serving

pytestmark = pytest.mark.anyio

LIMIT = 10_000


async def refusal(fetcher: Fetcher, url: str) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        await fetcher.fetch(url, PARAM)
    assert caught.value.param == PARAM
    return caught.value


async def test_content_and_type_come_as_they_were_sent() -> None:
    body = bytes(range(256))
    async with serving(says(answer(body, content_type="Image/PNG; q=1", content_length="256"))) as web:
        media = await fetcher(web).fetch(web.url("/a%20b/é?q=ü#part"), PARAM)
    assert (media.data, media.content_type) == (body, "image/png")
    (head,) = web.heads
    assert head.startswith("GET /a%20b/%C3%A9?q=%C3%BC HTTP/1.1\r\n")
    assert f"host: 127.0.0.1:{web.port}\r\n" in head
    assert "accept-encoding: identity\r\n" in head
    assert "cookie" not in head


async def test_nothing_of_the_environment_and_nothing_of_another_fetch_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(says(answer(b"x", set_cookie="a=b; Path=/"))) as web:
        shared = fetcher(web)
        for _ in range(2):
            assert (await shared.fetch(web.url(), PARAM)).data == b"x"
    for head in web.heads:
        assert "authorization" not in head.lower()
        assert "cookie" not in head.lower()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_three_redirects_are_followed(status: str) -> None:
    async def chain(path: str, writer: asyncio.StreamWriter) -> None:
        left = int(path.rpartition("/")[2])
        locations = ["", "0", "/deep/1", f"//127.0.0.1:{web.port}/2"]
        writer.write(answer(status=status, location=locations[left]) if left else answer(b"end"))

    async with serving(chain) as web:
        assert (await fetcher(web).fetch(web.url("/3"), PARAM)).data == b"end"
    assert [head.split(" ")[1] for head in web.heads] == ["/3", "/2", "/deep/1", "/deep/0"]


@pytest.mark.parametrize("size", [0, LIMIT - 1, LIMIT, LIMIT + 1, 40 * LIMIT])
@pytest.mark.parametrize("declared", [True, False])
async def test_the_size_is_bounded_whether_declared_or_not(size: int, declared: bool) -> None:
    head = {"content_length": str(size)} if declared else {}
    async with serving(says(answer(b"x" * size, **head))) as web:
        bounded = fetcher(web, max_bytes=LIMIT)
        if size <= LIMIT:
            assert len((await bounded.fetch(web.url(), PARAM)).data) == size
        else:
            assert (await refusal(bounded, web.url())).code == "media_too_large"


@pytest.mark.parametrize("length", ["99999999999999999999999", "9" * 5000, "-1", "0x10", "1, 2"])
async def test_a_length_that_is_none_is_refused(length: str) -> None:
    async with serving(says(answer(b"x", content_length=length))) as web:
        assert (await refusal(fetcher(web), web.url())).code in ("media_too_large", "media_unavailable")


async def test_a_body_without_end_is_given_up_at_the_limit() -> None:
    sent = 0

    async def endless(_path: str, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(answer(transfer_encoding="chunked"))
        while True:
            writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
            sent += 0x1000
            await writer.drain()

    async with serving(endless) as web:
        assert (await refusal(fetcher(web, max_bytes=LIMIT), web.url())).code == "media_too_large"
        await until(lambda: web.open == 0)
    assert sent < 32 << 20, "what the kernel's buffers took, and no more"


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\n", answer(content_length="100")])
async def test_a_slow_drip_ends_at_the_time_limit(first: bytes) -> None:
    async def drip(_path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        for number in range(20):
            writer.write(b"x" if first.endswith(b"\r\n\r\n") else b"x-%d: y\r\n" % number if first else b"")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with serving(drip) as web:
        assert (await refusal(fetcher(web, timeout=0.4), web.url())).code == "media_timeout"
        await until(lambda: web.open == 0)


async def test_redirects_share_one_time_limit() -> None:
    async def slow(_path: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(answer(status="302 Found", location="/"))

    async with serving(slow) as web:
        assert (await refusal(fetcher(web, timeout=0.4), web.url())).code == "media_timeout"


async def test_a_resolver_that_hangs_ends_at_the_time_limit() -> None:
    async def hangs(_host: str, _port: int) -> Sequence[str]:
        await asyncio.sleep(60)
        return []

    assert (await refusal(fetcher(timeout=0.1, resolve=hangs), "http://slow.test/")).code == "media_timeout"


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP", "identity, gzip"])
async def test_a_bomb_is_refused_before_it_is_unpacked(encoding: str) -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)
    async with serving(says(answer(bomb, content_encoding=encoding))) as web:
        refused = await refusal(fetcher(web, max_bytes=len(bomb)), web.url())
    assert refused.code == "media_unavailable"
    assert "compressed" in refused.message


@pytest.mark.parametrize(
    "head",
    [
        answer(status="404 Not Found"),
        answer(status="500 Oops"),
        answer(b"x", status="206 Partial Content"),
        answer(status="204 No Content"),
        answer(status="302 Found"),
        answer(b"x", content_length="2"),
        b"nonsense\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"y" * 200_000 + b"\r\n\r\n",
        answer(b"zz\r\n", transfer_encoding="chunked"),
    ],
    ids=lambda head: repr(head[:30]),
)
async def test_anything_but_a_whole_answer_is_told_as_the_field_s_fault(head: bytes) -> None:
    async with serving(says(head)) as web:
        refused = await refusal(fetcher(web), web.url())
    assert (refused.status, refused.code) == (400, "media_unavailable")
    assert str(web.port) not in refused.message


async def test_nobody_listening_is_told_as_the_field_s_fault() -> None:
    async with serving(says(b"")) as web:
        pass
    assert (await refusal(fetcher(web), web.url())).code == "media_unavailable"


async def test_the_next_address_is_tried_where_one_does_not_answer() -> None:
    async with serving(says(answer(b"x"))) as web:
        both = fetcher(
            web,
            resolve=names({"two.test": ["127.0.0.9", "127.0.0.1"]}),
            opened=(ip_network("127.0.0.1/32"), ip_network("127.0.0.9/32")),
        )
        assert (await both.fetch(web.url(host="two.test"), PARAM)).data == b"x"


async def test_fetches_at_once_are_bounded() -> None:
    gate = asyncio.Event()
    most = 0

    async def waits(_path: str, writer: asyncio.StreamWriter) -> None:
        nonlocal most
        most = max(most, web.open)
        await gate.wait()
        writer.write(answer(b"x"))

    async with serving(waits) as web:
        bounded = fetcher(web, max_fetches=2, timeout=30.0)
        tasks = [asyncio.create_task(bounded.fetch(web.url(), PARAM)) for _ in range(5)]
        await until(lambda: most == 2)
        await asyncio.sleep(0.05)
        gate.set()
        assert [media.data for media in await asyncio.gather(*tasks)] == [b"x"] * 5
        assert most == 2


async def test_a_fetch_that_never_began_is_our_fault_and_one_that_did_gives_its_place_back() -> None:
    async def hangs(_path: str, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with serving(hangs) as web:
        bounded = fetcher(web, max_fetches=1, timeout=0.2)
        for _ in range(2):
            assert (await refusal(bounded, web.url())).code == "media_timeout"
        await bounded._places.acquire()
        with pytest.raises(Overloaded) as busy:
            await bounded.fetch(web.url(), PARAM)
        assert (busy.value.status, busy.value.code) == (429, "media_busy")


async def test_what_is_fetched_at_once_is_bounded_in_bytes_and_given_back() -> None:
    gate = asyncio.Event()

    async def halves(_path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"x" * (LIMIT - 1)))
        await writer.drain()
        await gate.wait()

    async with serving(halves) as web:
        bounded = fetcher(web, max_bytes=LIMIT, timeout=30.0)
        tasks = [asyncio.create_task(bounded.fetch(web.url(), PARAM)) for _ in range(4)]
        await until(lambda: bounded._held == 4 * (LIMIT - 1))
        with pytest.raises(Overloaded) as busy:
            await bounded.fetch(web.url(), PARAM)
        assert busy.value.code == "media_busy"
        gate.set()
        assert {len(media.data) for media in await asyncio.gather(*tasks)} == {LIMIT - 1}
        assert bounded._held == 0


async def test_a_fetch_that_is_cancelled_lets_go_of_its_connection_and_its_place() -> None:
    async def hangs(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"x"))
        await writer.drain()
        if path == "/hang":
            await asyncio.sleep(0.2)
            while not writer.transport.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)

    async with serving(hangs) as web:
        bounded = fetcher(web, max_fetches=1, timeout=30)
        task = asyncio.create_task(bounded.fetch(web.url("/hang"), PARAM))
        await until(lambda: web.open == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: web.open == 0)
        assert (await bounded.fetch(web.url(), PARAM)).data == b"x"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For ``named.test`` alone; key and certificate in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=named.test", "-addext", "subjectAltName=DNS:named.test"]
    out = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command, *names, *out], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


async def test_the_certificate_is_checked_against_the_name_and_not_the_address(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    here: dict[str, Any] = {"resolve": names({"named.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]})}
    trusting = ssl.create_default_context(cafile=certificate)
    async with serving(says(answer(b"x")), tls=context) as web:
        ours = fetcher(web, tls=trusting, allow_http=False, **here)
        assert (await ours.fetch(web.url(host="named.test", scheme="https"), PARAM)).data == b"x"
        assert web.names == ["named.test"]
        assert f"host: named.test:{web.port}\r\n" in web.heads[0]
        for url in (web.url(host="other.test", scheme="https"), web.url(scheme="https")):
            assert (await refusal(ours, url)).code == "media_unavailable", "another name, or the address itself"
        strangers = fetcher(web, **here)
        assert (await refusal(strangers, web.url(host="named.test", scheme="https"))).code == "media_unavailable"
    assert len(web.heads) == 1, "no request was sent before the certificate was checked"


async def test_https_does_not_redirect_to_http(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    here: dict[str, Any] = {"resolve": names({"named.test": ["127.0.0.1"]})}
    async with serving(says(answer(status="302 Found", location="http://127.0.0.1/")), tls=context) as web:
        ours = fetcher(web, tls=ssl.create_default_context(cafile=certificate), **here)
        assert "from https to http" in (await refusal(ours, web.url(host="named.test", scheme="https"))).message


async def test_data_urls_are_fetched_the_same_way() -> None:
    assert (await fetcher().fetch("data:image/png;base64,AAEC", PARAM)).data == b"\0\1\2"
    assert (await refusal(fetcher(max_bytes=2), "data:,abc")).code == "media_too_large"
    assert (await refusal(fetcher(), "data:;base64,AAE")).code == "media_refused"
    long = "data:text/x,".ljust(200_000, "a")
    assert len((await fetcher().fetch(long, PARAM)).data) == 200_000 - 12


async def test_files_are_read_only_where_a_folder_was_opened(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    url = f"file://{tmp_path}/a.png"
    assert (await refusal(fetcher(), url)).code == "media_refused"
    media = await fetcher(root=tmp_path).fetch(url, PARAM)
    assert (media.data, media.content_type) == (b"x", "image/png")
    refused = await refusal(fetcher(root=tmp_path), f"file://{tmp_path}/missing")
    assert os.fspath(tmp_path) not in refused.message
