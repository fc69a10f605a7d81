"""Names of hosts, resolved once and checked.

A connection goes to an address that was checked here, so a name that resolves to another place a moment later gains
nothing.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Final

import anyio.to_thread

from ..refusal import Refusal
from .addresses import Address, Network, may_reach
from .urls import Target

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_MAX_ADDRESSES: Final = 4
"""Addresses of one name that are used."""
_NO_ADDRESS: Final = "the URL's host has no address that this server may reach"
"""The same message for an unknown name, so that it does not disclose the names of a private network."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """All addresses of a name, best first. Raises ``OSError``."""
    lookup = partial(socket.getaddrinfo, host.encode("ascii"), port, type=socket.SOCK_STREAM)
    found = await anyio.to_thread.run_sync(lookup, abandon_on_cancel=True)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def addresses_of(target: Target, resolve: Resolve, opened: Sequence[Network]) -> tuple[Address, ...]:
    """Addresses of ``target``; one forbidden address forbids all. Raises :class:`..refusal.Refusal`."""
    if target.address is not None:
        found = [target.address]
    else:
        try:
            found = [ip_address(text) for text in await resolve(target.host, target.port)]
        except (OSError, ValueError):
            raise Refusal(_NO_ADDRESS) from None
    if not found or not all(may_reach(address, opened) for address in found):
        raise Refusal(_NO_ADDRESS)
    return tuple(found[:_MAX_ADDRESSES])
