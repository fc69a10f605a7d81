"""ICE sockets that answer peers with a call's password, and contact no others.

The client checks our addresses (RFC 8445), and we check it at the source of its checks. Its own candidates are ignored,
so that no offer makes this server send anything to an address that has not shown the password.
"""

import asyncio
import ipaddress
import random
import socket
import time
from collections.abc import Sequence
from typing import Final

from aioice import Candidate, Connection
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import StunProtocol, get_host_addresses
from aioice.stun import Message

MAX_ADDRESSES: Final = 32
"""From which one client's checks may come."""
MAX_DATAGRAMS: Final = 256
"""Datagrams that wait to be read; later ones are dropped, as on a full network."""
MAX_RATE: Final = 1_000
"""Datagrams of one client a second; a call has some 60."""
_BUFFER_BYTES: Final = 256 << 10


class NoPort(Exception):
    """No socket could be bound."""


def own_addresses() -> list[str]:
    """This machine's addresses without loopback ones; if there are no others, loopback."""
    return get_host_addresses(use_ipv4=True, use_ipv6=True) or ["127.0.0.1"]


class AnsweringIce(Connection):
    """The controlled end of one connection, of one component."""

    def __init__(self, addresses: Sequence[str], announced: str, ports: tuple[int, int]) -> None:
        """A socket on each of ``addresses``, or on all of the family of ``announced``, which is sent to clients; on a
        port of ``ports``, both included, or on any if they are 0."""
        super().__init__(ice_controlling=False)
        self._bound_to = [_any_of(announced)] if announced else list(addresses)
        self._announced = announced
        self._ports = ports
        self._allowance = float(MAX_DATAGRAMS)
        self._counted_at = time.monotonic()

    async def gather_candidates(self) -> None:
        """Raises NoPort."""
        self._local_candidates_start = True
        loop = asyncio.get_running_loop()
        for address in self._bound_to:
            sock = _bound(address, self._ports)
            if sock is None:
                continue
            _, protocol = await loop.create_datagram_endpoint(lambda: StunProtocol(self), sock=sock)
            host = self._announced or address
            # those that come first are preferred
            preference = 65535 - len(self._local_candidates)
            candidate = Candidate(
                candidate_foundation("host", "udp", host),
                component=1,
                transport="udp",
                priority=candidate_priority(1, "host", preference),
                host=host,
                port=sock.getsockname()[1],
                type="host",
            )
            protocol.local_candidate = candidate
            self._protocols.append(protocol)
            self._local_candidates.append(candidate)
        self._local_candidates_end = True
        if not self._local_candidates:
            raise NoPort

    def check_incoming(self, message: Message, addr: tuple[str, int], protocol: StunProtocol) -> None:
        known = any((one.host, one.port) == addr for one in self._remote_candidates)
        if known or len(self._remote_candidates) < MAX_ADDRESSES:
            super().check_incoming(message, addr, protocol)

    def data_received(self, data: bytes, component: int) -> None:
        now = time.monotonic()
        self._allowance = min(MAX_DATAGRAMS, self._allowance + (now - self._counted_at) * MAX_RATE)
        self._counted_at = now
        if self._nominated and self._allowance >= 1 and self._queue.qsize() < MAX_DATAGRAMS:
            self._allowance -= 1
            super().data_received(data, component)


def _any_of(announced: str) -> str:
    return "::" if ipaddress.ip_address(announced).version == 6 else "0.0.0.0"


def _bound(address: str, ports: tuple[int, int]) -> socket.socket | None:
    """None if no port is free, or the address is gone."""
    low, high = ports
    count = high - low + 1
    begin = random.randrange(count)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    for step in range(count):
        try:
            sock.bind((address, low + (begin + step) % count))
        except OSError:
            continue
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        return sock
    sock.close()
    return None
