"""The origins whose web pages may ask. Light: it is read before the rest of the server is imported."""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

ANY: Final = "*"

Headers = Sequence[tuple[bytes, bytes]]


class Origins:
    """Origins whose pages may call this server and read its answers; :data:`ANY` stands for all."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = frozenset(allowed)
        self.any = ANY in self._allowed

    def __bool__(self) -> bool:
        return bool(self._allowed)

    def allow(self, origin: str) -> bool:
        return self.any or origin in self._allowed

    def admit(self, headers: Headers, *, keyless: bool) -> bool:
        """Whether a request comes from what is no browser, from a page of our own, or of an allowed origin.

        Browsers let every page open WebSockets and send simple requests to any address, and hide no more than the
        answer. Without a key to tell friends by (``keyless``) a page is our own only under a name that nobody else
        can have: whoever owns a name can point it at our address, and his page there looks like ours.
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
        return same and not (keyless and _can_be_owned(name or ""))


def _can_be_owned(name: str) -> bool:
    """Whether it is a name in the public DNS, not an address, one of this machine or of the network around it."""
    return "." in name and not name.endswith(".localhost") and not _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def header(headers: Headers, wanted: bytes) -> str | None:
    """The first of that name, which is in small letters."""
    for name, value in headers:
        if name == wanted:
            return value.decode("latin-1")
    return None
