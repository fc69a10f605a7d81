"""Which servers requests may name by URL, and at which addresses they are reached.

Nothing is, unless the operator opened it. A name is resolved once for each request, every address is checked, and
connections go to one of those: a name that resolves to another place a moment later gains nothing.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote

import anyio.to_thread

from .addresses import OWN, Address, may_reach
from .urls import Refusal, Target, parse

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

ANY_HTTPS: Final = "https://"
"""Among prefixes: any public host."""
_MAX_ADDRESSES: Final = 4
_NO_ADDRESS: Final = "the URL's host has no address that this server may reach"
"""The same for a name that there is not: it must not tell which names a private network has."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """All addresses of a name, best first. Raises ``OSError``."""
    lookup = partial(socket.getaddrinfo, host.encode("ascii"), port, type=socket.SOCK_STREAM)
    found = await anyio.to_thread.run_sync(lookup, abandon_on_cancel=True)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True)
class ServerAddress:
    """Where a server is."""

    target: Target
    addresses: tuple[Address, ...] | None
    """Checked; None: the operator named it, and it is resolved like any other."""


class UrlAllowlist:
    def __init__(self, prefixes: Sequence[str], *, allow_private: bool = False, resolve: Resolve = resolve) -> None:
        """``prefixes``: what URLs may begin with."""
        self._any = ANY_HTTPS in prefixes
        self._prefixes = tuple(parse(prefix) for prefix in prefixes if prefix != ANY_HTTPS)
        self._private = allow_private
        self._resolve = resolve

    async def place(self, url: str) -> ServerAddress:
        """Raises Refusal."""
        target = parse(url)
        named = any(_begins(target, prefix) for prefix in self._prefixes)
        if not named and not (self._any and target.scheme == "https" and target.port == 443):
            raise Refusal("this server may not be reached from here; the operator has not opened its URL")
        return ServerAddress(target, await self._addresses(target, named))

    async def _addresses(self, target: Target, named: bool) -> tuple[Address, ...]:
        if target.address is not None:
            found = [target.address]
        else:
            try:
                found = [ip_address(text) for text in await self._resolve(target.host, target.port)]
            except (OSError, ValueError):
                raise Refusal(_NO_ADDRESS) from None
        # an address that the operator wrote is meant; what a name resolves to is said by whoever owns the name
        opened = OWN if named and (self._private or target.address is not None) else ()
        if not found or not all(may_reach(address, opened) for address in found):
            raise Refusal(_NO_ADDRESS)
        return tuple(found[:_MAX_ADDRESSES])


def check_prefix(text: str) -> str:
    """A prefix as it is kept. Raises Refusal."""
    if text == ANY_HTTPS:
        return text
    target = parse(text)
    return f"{target.scheme}://{target.authority}{target.path}"


def _begins(target: Target, prefix: Target) -> bool:
    """Whether the URL lies at or below the prefix."""
    if (target.scheme, target.host, target.port) != (prefix.scheme, prefix.host, prefix.port):
        return False
    path = target.path.partition("?")[0]
    if any(unquote(part) in (".", "..") for part in path.split("/")):
        return False
    below = prefix.path.rstrip("/")
    return path == below or path.startswith(f"{below}/")
