"""The names that the server may be asked for under. Light: it is read before the rest of the server is imported."""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

Headers = Sequence[tuple[bytes, bytes]]

_HOST: Final = re.compile(rb"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{0,5})?")


class Hosts:
    """Names that are given, and those that nobody else can have: addresses, ``localhost``, and names without a dot.

    Whoever owns a name in the public DNS can point it at our address. To a browser their page is then ours: it may send
    what it likes and read every answer, and no ``Origin`` comes with its GETs. Only ``Host`` tells (DNS rebinding).
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
        """The host that a request names where it may not, ``""`` where it names none that can be read; None where it
        may. A request without ``Host``, which HTTP/1.0 allows, may not: no browser sends one, but a proxy in between
        may have taken it away.
        """
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
