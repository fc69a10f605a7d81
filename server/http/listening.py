"""The socket that the server listens on. Light: it is bound before the rest of the server is imported."""

import contextlib
import resource
import socket
import sys

BACKLOG = 2048
_RESERVED_DESCRIPTORS = 512
"""For connections that are being turned away, and for pipes and files of ours."""


class StartError(Exception):
    """The server cannot start; the message is one line for the operator."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises :class:`StartError` naming the address when it is taken or is not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise StartError(
            f"cannot listen on {host} port {port}: {(error.strerror or str(error)).lower()}; "
            "choose another with --host or --port"
        ) from error
    return sock


def connections_within_descriptors(wanted: int) -> tuple[int, int]:
    """Reduces ``wanted`` (0: no limit) to leave descriptors for the rest of the server, 0 being no limit; also returns
    how many descriptors that leaves.

    If clients used every descriptor, no crashed process could be replaced.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted, sys.maxsize
    most = limit - min(_RESERVED_DESCRIPTORS, limit * 3 // 4)
    taken = min(wanted, most) if wanted else most
    return taken, limit - taken


def allow_connections() -> None:
    """Let this process hold as many connections as its hard limit of descriptors allows.

    A shell's soft limit is often 1,024, fewer than the requests that may wait.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # an unlimited hard limit can be more than the kernel takes
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def address_of(sock: socket.socket, *, tls: bool = False) -> str:
    """The address of a listening socket for clients."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"
