"""The origins whose web pages may ask. Light: it is read before the rest of the server is imported."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from ..config.config import ANY_ORIGIN
from .hosts import Headers, Hosts


class Origins:
    """Origins whose pages may call this server and read its answers; ``*`` allows all."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self.allowed: Final = frozenset(allowed)
        self.any: Final = ANY_ORIGIN in self.allowed

    def __bool__(self) -> bool:
        return bool(self.allowed)

    def allow(self, origin: str) -> bool:
        return self.any or origin in self.allowed

    def admit(self, headers: Headers, *, keyless: bool, hosts: Hosts) -> bool:
        """Whether a request comes from a client that is no browser, from our own page, or from an allowed origin.

        Browsers let every page open WebSockets and send simple requests to any address, and only hide the answer.
        Without keys (``keyless``) a page is our own only under a name that no attacker can own, or one of ``hosts``.
        """
        origin = header(headers, b"origin")
        if origin is None or self.allow(origin):
            return True
        try:
            ours = urlsplit(origin)
            name = ours.hostname
        except ValueError:
            return False
        host = header(headers, b"host")
        same = name is not None and host is not None and ours.netloc == host.lower()
        return same and (not keyless or hosts.allow(name or ""))


def header(headers: Headers, wanted: bytes) -> str | None:
    """The first of that name, which is in small letters."""
    for name, value in headers:
        if name == wanted:
            return value.decode("latin-1")
    return None
