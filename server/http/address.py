"""The server's address: a host and a port, or a socket in the file system."""

import contextlib
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from ..config.config import Config
from .listening import BACKLOG, StartError, address_of, bind

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def listening(config: Config) -> Iterator[socket.socket]:
    """A listening socket; afterwards nothing of it is left. Raises :class:`StartError`."""
    path = config.access.uds
    if path is None:
        with bind(config.http.host, config.http.port) as sock:
            yield sock
        return
    with bind_unix(path, config.access.uds_mode) as sock:
        ours = _identity(path)
        try:
            yield sock
        finally:
            # by now it may be the socket of another server
            if ours is not None and _identity(path) == ours:
                with contextlib.suppress(OSError):
                    path.unlink()


def bind_unix(path: Path, mode: int) -> socket.socket:
    """A listening socket at ``path``, in place of one that was left there. Raises :class:`StartError`."""
    _make_room(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), mode)  # Linux gives it to the file, less the umask: it is never more open than this
        sock.bind(str(path))
        path.chmod(mode)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _cannot_listen(path, (error.strerror or str(error)).lower()) from error
    return sock


def warn_if_open(config: Config, sock: socket.socket, *, keys: bool) -> None:
    """Logs one warning if others can reach the server without a key."""
    if keys or config.access.tls_ca is not None or sock.family == socket.AF_UNIX:
        return
    host = sock.getsockname()[0]
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        logger.warning(
            "NO API KEY: whoever reaches %s may use this server; set --api-key-file or STENTOR_API_KEY, "
            "or listen on 127.0.0.1",
            address_of(sock, tls=config.access.tls_cert is not None),
        )


def _make_room(path: Path) -> None:
    """Removes a socket that no process listens on."""
    try:
        found = path.lstat()
    except OSError:
        return  # it does not exist, or binding will report the problem
    if not stat.S_ISSOCK(found.st_mode):
        raise _cannot_listen(path, "there is something else in its place")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            pass
        except FileNotFoundError:
            return
        except OSError as error:  # its queue is full, or we may not ask
            raise _cannot_listen(path, f"a server may be there ({(error.strerror or str(error)).lower()})") from error
        else:
            raise _cannot_listen(path, "a server listens there")
    if found.st_uid != os.geteuid():
        raise _cannot_listen(path, "another user left a socket there")
    with contextlib.suppress(FileNotFoundError):
        try:
            path.unlink()
        except PermissionError as error:
            raise _cannot_listen(path, "a socket was left there and cannot be removed") from error


def _cannot_listen(path: Path, why: str) -> StartError:
    return StartError(f"cannot listen on {path}: {why}; choose another with --uds")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
