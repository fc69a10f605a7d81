"""Which servers requests may name by URL, and at which addresses they are reached.

Nothing is, unless the operator opened it. A name is resolved once for each request, see
:mod:`..media.fetching.resolving`.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import msgspec

from ..media.fetching.addresses import OWN, Address
from ..media.fetching.resolving import Resolve, addresses_of, resolve
from ..media.fetching.urls import Target, parse
from ..media.refusal import Refusal

ANY_HTTPS: Final = "https://"
"""Among prefixes: any public host."""


class ServerAddress(msgspec.Struct, frozen=True):
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
        # the operator's own address is trusted; the addresses of a name are chosen by its owner
        opened = OWN if named and (self._private or target.address is not None) else ()
        return ServerAddress(target, await addresses_of(target, self._resolve, opened))


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
