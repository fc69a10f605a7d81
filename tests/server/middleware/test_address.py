"""Sockets in the file system, and the warning about a server open to all."""

import logging
import os
import socket
import stat
from pathlib import Path

import httpx
import pytest

from stentor.server.config.config import AccessConfig
from stentor.server.http.address import bind_unix, listening, warn_if_open
from stentor.server.http.listening import StartError, address_of
from stentor.tests.fakes import fake_state
from stentor.tests.server.middleware.listeners import config_of, serving, unix_client, with_uds


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stentor.sock"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.anyio
async def test_a_socket_in_the_file_system_serves_and_is_removed_at_the_end(path: Path) -> None:
    async with serving(fake_state(), with_uds(path)) as url:
        assert url == f"unix:{path}"
        assert mode_of(path) == 0o600
        async with unix_client(path) as http:
            assert (await http.get("/v1/models")).status_code == 200
    assert not path.exists()
    async with unix_client(path) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("/v1/models")


@pytest.mark.parametrize(("mode", "umask"), [(0o600, 0o022), (0o660, 0o077), (0o666, 0o077), (0o600, 0)])
def test_its_mode_is_the_one_that_was_asked_for(path: Path, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        with bind_unix(path, mode):
            assert mode_of(path) == mode
    finally:
        os.umask(before)


def test_a_socket_that_nobody_listens_on_is_replaced(path: Path) -> None:
    bind_unix(path, 0o600).close()  # as after a kill
    assert path.exists()
    with listening(config_of(with_uds(path))) as sock, socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
        assert address_of(sock) == f"unix:{path}"
    assert not path.exists()


def test_a_socket_of_a_living_server_is_left_alone(path: Path) -> None:
    with listening(config_of(with_uds(path))):
        with pytest.raises(StartError, match=rf"^cannot listen on {path}: a server listens there; .* --uds$"):
            bind_unix(path, 0o600)
        assert path.exists()


def test_a_server_whose_queue_is_full_lives_too(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))
        with pytest.raises(StartError, match="a server may be there"):
            bind_unix(path, 0o600)


def test_what_is_no_socket_is_never_removed(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(StartError, match="there is something else in its place"):
        bind_unix(path, 0o600)
    assert path.read_text() == "precious"
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(StartError, match="there is something else in its place"):
        bind_unix(link, 0o600)


@pytest.mark.parametrize(("name", "why"), [("nowhere/s", "no such file or directory"), ("x" * 200, "path too long")])
def test_a_path_that_cannot_be_is_one_line(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(StartError, match=rf"^cannot listen on {tmp_path / name}: .*{why}; choose another with --uds$"):
        bind_unix(tmp_path / name, 0o600)


def test_the_socket_of_another_server_is_not_removed_at_our_end(path: Path) -> None:
    with listening(config_of(with_uds(path))):
        path.unlink()
        theirs = bind_unix(path, 0o600)
    with theirs:
        assert path.exists()


# ---- a server open to all


@pytest.mark.parametrize(
    ("host", "keys", "access", "warned"),
    [
        ("127.0.0.1", False, AccessConfig(), False),
        ("0.0.0.0", False, AccessConfig(), True),
        ("0.0.0.0", True, AccessConfig(), False),
        ("0.0.0.0", False, AccessConfig(tls_ca=Path("ca.pem")), False),
        ("0.0.0.0", False, AccessConfig(tls_cert=Path("cert.pem")), True),
    ],
)
def test_a_server_that_anyone_can_use_says_so(
    host: str, keys: bool, access: AccessConfig, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    config = config_of(access, host)
    with listening(config) as sock:
        warn_if_open(config, sock, keys=keys)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == warned
    if warned:
        assert "NO API KEY" in lines[0]
        assert "--api-key-file" in lines[0]
        assert ("https://" if access.tls_cert else "http://") in lines[0]


def test_a_socket_in_the_file_system_is_no_open_access(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(with_uds(path))
    with listening(config) as sock:
        warn_if_open(config, sock, keys=False)
    assert not caplog.records
