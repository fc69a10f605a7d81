"""TLS as clients meet it: through the real listener, on the event loop that serves."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from stentor.server.common.files import FileRefused
from stentor.server.config.config import AccessConfig, ConfigError
from stentor.server.config.limits import ConnectionLimits
from stentor.server.http import tls
from stentor.server.http.connections import Connections
from stentor.server.http.tls import ReloadingContext, TlsFiles
from stentor.server.middleware.access_control import AccessControl, open_access
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, HELLO, until
from stentor.tests.server.middleware.certificates import Authority, Pair, lock
from stentor.tests.server.middleware.keyrings import keyring
from stentor.tests.server.middleware.listeners import client, serving

PASSWORD = "open sesame"


@dataclass(frozen=True)
class Files:
    ca: Authority
    server: Pair
    renewed: Pair
    locked: Pair
    visitor: Pair
    other_ca: Authority
    stranger: Pair
    password: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    ca, other = Authority(folder), Authority(folder, "other")
    server = ca.sign("server")
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    (folder / "long").write_text("x" * 2000)
    return Files(
        ca,
        server,
        ca.sign("renewed"),
        lock(server, PASSWORD),
        ca.sign("visitor"),
        other,
        other.sign("stranger"),
        password,
    )


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@asynccontextmanager
async def secured(context: ReloadingContext, engine: FakeEngine | None = None) -> AsyncIterator[str]:
    async with serving(fake_state(engine, access=AccessControl(keyring("key"), tls=context))) as url:
        yield url


def trusting(files: Files, visitor: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca.cert)
    if visitor is not None:
        context.load_cert_chain(visitor.cert, visitor.key)
    return context


def sdk_client(files: Files) -> DefaultAsyncHttpxClient:
    return DefaultAsyncHttpxClient(verify=trusting(files), trust_env=False)


def subject(peer: object) -> str:
    """Common name of the certificate that a stream's other end showed."""
    assert isinstance(peer, ssl.SSLObject)
    certificate = peer.getpeercert()
    assert certificate is not None
    match certificate["subject"]:
        case ((("commonName", str(name)),),):
            return name
    raise AssertionError(certificate)


async def name_of(url: str, context: ssl.SSLContext) -> str:
    """What a new connection is shown."""
    _, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), ssl=context)
    name = subject(writer.get_extra_info("ssl_object"))
    writer.close()
    return name


async def refused(url: str, context: ssl.SSLContext) -> bool:
    try:
        async with client(url, context) as http:
            await http.get("/ping")
    except httpx.TransportError:
        return True
    return False


# ---- serving


@pytest.mark.anyio
async def test_the_sdk_streams_over_tls(files: Files) -> None:
    context = ReloadingContext.load(TlsFiles(files.server.cert, files.server.key))
    async with (
        secured(context) as url,
        client(url, trusting(files)) as http,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="key", http_client=sdk_client(files), max_retries=0) as sdk,
    ):
        assert url.startswith("https://")
        stream = await sdk.completions.create(model="fake", prompt="hello", max_tokens=20, stream=True)
        chunks = [chunk async for chunk in stream]
        assert len(chunks) > 10
        assert (await http.get("/v1/models")).status_code == 401


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_versions_before_1_2_are_refused(files: Files) -> None:
    async with secured(ReloadingContext.load(TlsFiles(files.server.cert, files.server.key))) as url:
        for version, good in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = trusting(files)
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
            assert await refused(url, context) != good


@pytest.mark.anyio
async def test_what_is_no_tls_gets_no_answer(files: Files) -> None:
    async with secured(ReloadingContext.load(TlsFiles(files.server.cert, files.server.key))) as url:
        with pytest.raises(httpx.TransportError):
            async with client(url.replace("https", "http")) as http:
                await http.get("/ping")
        assert not await refused(url, trusting(files))


@pytest.mark.anyio
@pytest.mark.parametrize("greeting", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_who_does_not_shake_hands_is_dropped(
    files: Files, greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 0.1)
    async with secured(ReloadingContext.load(TlsFiles(files.server.cert, files.server.key))) as url:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(greeting)
        async with asyncio.timeout(60):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(4096)
        assert time.monotonic() - began > 0.05
        writer.close()


@pytest.mark.anyio
async def test_a_connection_counts_from_its_beginning_not_from_the_end_of_its_handshake(files: Files) -> None:
    connections = Connections(ConnectionLimits(max_connections=2))
    context = ReloadingContext.load(TlsFiles(files.server.cert, files.server.key))
    state = fake_state(access=AccessControl(keyring("key"), tls=context))
    async with serving(state, connections=connections) as url, client(url, trusting(files)) as http:
        port = int(url.rsplit(":", 1)[1])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await until(lambda: connections.open == 2)
        refused = await http.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_connections")
        assert (await http.get("/ping")).status_code == 200, "there is always a place for a probe"
        for _, writer in silent:
            writer.close()
        await until(lambda: connections.open == 0)
        assert (await http.get("/ping")).status_code == 200
        assert connections.open == 1
    await until(lambda: connections.open == 0)


@pytest.mark.anyio
async def test_a_place_for_probes_is_held_by_a_handshake_for_a_moment_only(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "PROBE_HANDSHAKE_SECONDS", 0.1)
    connections = Connections(ConnectionLimits(max_connections=1), max_probes=1)
    context = ReloadingContext.load(TlsFiles(files.server.cert, files.server.key))
    async with serving(fake_state(access=AccessControl(tls=context)), connections=connections) as url:
        port = int(url.rsplit(":", 1)[1])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        async with asyncio.timeout(60):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await silent[1][0].readexactly(1)
        monkeypatch.setattr(tls, "PROBE_HANDSHAKE_SECONDS", 60.0)  # for one who means it
        async with client(url, trusting(files)) as http:
            assert (await http.get("/ping")).status_code == 200
        for _, writer in silent:
            writer.close()


@pytest.mark.anyio
async def test_bytes_that_are_no_handshake_leave_no_trace_in_the_count_or_the_log(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    connections = Connections(ConnectionLimits())
    context = ReloadingContext.load(TlsFiles(files.server.cert, files.server.key))
    async with serving(fake_state(access=AccessControl(tls=context)), connections=connections) as url:
        for junk in (b"GET / HTTP/1.1\r\n\r\n", bytes(300), b"\x16\x03\x01\x00\x05hello"):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            writer.write(junk)
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
        await until(lambda: connections.open == 0)
        assert not await refused(url, trusting(files))
    assert not caplog.records


@pytest.mark.anyio
async def test_more_connections_than_are_told_so_are_closed_before_any_handshake(
    files: Files,
) -> None:
    connections = Connections(ConnectionLimits(max_connections=1), max_turned_away=1, max_probes=0)
    context = ReloadingContext.load(TlsFiles(files.server.cert, files.server.key))
    async with serving(fake_state(access=AccessControl(tls=context)), connections=connections) as url:
        opened = [await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1])) for _ in range(3)]
        reader, _ = opened[2]
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        assert connections.refused[429] == 1
        for _, writer in opened:
            writer.close()
        await until(lambda: connections.open == 0)
        assert not await refused(url, trusting(files))


@pytest.mark.anyio
async def test_with_an_authority_clients_need_a_certificate_of_it(files: Files) -> None:
    context = ReloadingContext.load(TlsFiles(files.server.cert, files.server.key, files.ca.cert))
    async with secured(context) as url:
        assert not await refused(url, trusting(files, files.visitor))
        assert await refused(url, trusting(files))
        assert await refused(url, trusting(files, files.stranger))


# ---- reloading


@pytest.mark.anyio
async def test_new_connections_get_the_new_certificate_and_old_ones_go_on(files: Files, tmp_path: Path) -> None:
    used = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    put(files.server, used)
    context = ReloadingContext.load(TlsFiles(used.cert, used.key))
    engine = FakeEngine(delay=0.01)
    async with secured(context, engine) as url, client(url, trusting(files)) as http:
        headers = {"authorization": "Bearer key"}
        body = {"messages": HELLO, "max_tokens": 60, "stream": True}
        old = asyncio.create_task(http.post(CHAT, json=body, headers=headers))
        await until(lambda: engine.live)
        assert await name_of(url, trusting(files)) == "server"
        put(files.renewed, used)
        assert "new connections get" in await context.reload()
        assert await name_of(url, trusting(files)) == "renewed"
        assert not old.done()
        assert (await old).text.endswith("data: [DONE]\n\n")
        assert (await http.get("/v1/models", headers=headers)).status_code == 200, "on the connection from before"


@pytest.mark.anyio
async def test_files_that_do_not_belong_together_change_nothing(files: Files, tmp_path: Path) -> None:
    used = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    put(files.server, used)
    context = ReloadingContext.load(TlsFiles(used.cert, used.key))
    async with secured(context) as url:
        shutil.copy(files.renewed.cert, used.cert)  # as between the two writes of a renewal
        with pytest.raises(FileRefused, match="does not belong to the certificate"):
            await context.reload()
        assert await name_of(url, trusting(files)) == "server"
        shutil.copy(files.renewed.key, used.key)
        await context.reload()
        assert await name_of(url, trusting(files)) == "renewed"


@pytest.mark.anyio
async def test_an_authority_that_was_replaced_is_forgotten_and_its_sessions_too(files: Files, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    shutil.copy(files.ca.cert, authority)
    context = ReloadingContext.load(TlsFiles(files.server.cert, files.server.key, authority))
    visitor = trusting(files, files.visitor)
    visitor.maximum_version = ssl.TLSVersion.TLSv1_2  # there a session is known when the handshake ends
    async with secured(context) as url:
        port = int(url.rsplit(":", 1)[1])
        session = await asyncio.to_thread(connect, port, visitor, None)
        again = await asyncio.to_thread(connect, port, visitor, session)
        assert again is not None
        shutil.copy(files.other_ca.cert, authority)
        await context.reload()
        with pytest.raises(OSError):  # noqa: PT011  # a reset or an alert, as it comes
            await asyncio.to_thread(connect, port, visitor, session)
        assert not await refused(url, trusting(files, files.stranger))


def connect(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
    """The session of one connection that was answered."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as secure,
    ):
        secure.sendall(b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert secure.recv(64).startswith(b"HTTP/1.1 200")
        return secure.session


def put(source: Pair, target: Pair) -> None:
    shutil.copy(source.cert, target.cert)
    shutil.copy(source.key, target.key)


# ---- files


def test_one_file_may_hold_certificate_and_key(files: Files, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(files.server.key.read_text() + files.server.cert.read_text())
    ReloadingContext.load(TlsFiles(both))


def test_a_locked_key_is_opened_by_its_password(files: Files) -> None:
    ReloadingContext.load(TlsFiles(files.locked.cert, files.locked.key, password=files.password))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tls_key": "visitor.key"}, r"visitor\.key: the key does not belong to the certificate in .*server\.pem"),
        ({"tls_key": None}, r"server\.pem: expected a private key in PEM form, found none"),
        ({"tls_key": "password"}, r"password: expected a private key in PEM form, found none"),
        ({"tls_cert": "server.key"}, r"server\.key: expected a certificate in PEM form, found none"),
        ({"tls_cert": "nowhere"}, r"nowhere: cannot be read: No such file"),
        ({"tls_key": "nowhere"}, r"nowhere: cannot be read: No such file"),
        ({"tls_ca": "password"}, r"password: expected a certificate in PEM form"),
        ({"tls_key": "server.locked"}, r"server\.locked: the key is locked; give --tls-key-password-file"),
        (
            {"tls_key": "server.locked", "tls_key_password_file": "ca.pem"},
            r"server\.locked: expected a private key in PEM form, found none, or .*ca\.pem does not open it",
        ),
        ({"tls_key": "server.locked", "tls_key_password_file": "nowhere"}, r"nowhere: cannot be read"),
        (
            {"tls_key": "server.locked", "tls_key_password_file": "long"},
            r"long: password cannot be longer than 1024 bytes",
        ),
        ({"tls_cert": None}, r"^--tls-key: it needs --tls-cert beside it"),
    ],
)
def test_wrong_files_are_one_line_that_names_them(files: Files, change: dict[str, str | None], message: str) -> None:
    folder = files.server.cert.parent
    names = {"tls_cert": "server.pem", "tls_key": "server.key", **change}
    paths = {option: folder / name for option, name in names.items() if name is not None}
    with pytest.raises(ConfigError, match=message) as caught:
        open_access(AccessConfig(**paths))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
