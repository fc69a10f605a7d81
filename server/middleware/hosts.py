"""Allowed ``Host`` names. Light: imported before the rest of the server."""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

Headers = Sequence[tuple[bytes, bytes]]

_HOST: Final = re.compile(rb"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{0,5})?")


class Hosts:
    """Names that are allowed: given ones, and those that no attacker can own: addresses, ``localhost``, and names
    without a dot.

    The owner of a name in the public DNS can point it at this server's address. To a browser the owner's page is then
    same-origin: it may send any request and read every answer, and its GETs have no ``Origin``. Only ``Host`` shows
    this (DNS rebinding).
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """``allowed`` in small letters, without ports."""
        self._allowed = frozenset(allowed)

    def __bool__(self) -> bool:
        """Whether any were given."""
        return bool(self._allowed)

    def allow(self, name: str) -> bool:
        """``name`` in small letters; an address of IPv6 without brackets."""
        return name in self._allowed or not _can_be_owned(name)

    def refused(self, headers: Headers) -> str | None:
        """The host of a request that is not allowed, ``""`` if it names none that can be read; None if it is allowed. A
        request without ``Host``, which HTTP/1.0 allows, is refused: no browser sends one, but a proxy may have removed
        it."""
        given = [value for name, value in headers if name == b"host"]
        match = _HOST.fullmatch(given[0].strip()) if len(given) == 1 else None
        if match is None:
            return ""
        host = (match[1] or match[2]).decode().lower()
        return None if self.allow(host) else host


def _can_be_owned(name: str) -> bool:
    """Whether it is a name in the public DNS, not an address, one of this machine or of the network around it."""
    return not name or ("." in name and not name.endswith(".localhost") and not _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
