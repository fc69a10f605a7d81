"""Limits on connections."""

import ipaddress
import logging
from collections import Counter
from typing import Any, Final

import msgspec

from ..config.limits import ConnectionLimits
from .listening import connections_within_descriptors

logger = logging.getLogger(__name__)

MAX_TURNED_AWAY: Final = 256
"""Refused connections that get an error response; further ones are closed without one."""
MAX_PROBES: Final = 16
"""Connections beyond ``max_connections`` whose first head is read, to answer it where it is a probe."""
MAX_PROBES_PER_CLIENT: Final = 4
"""Of those, for one client: a few silent clients must not block the probes of others."""

Client = str | bytes


class Connections:
    """The open connections of one listener, counted."""

    @classmethod
    def within_descriptors(cls, limits: ConnectionLimits) -> "Connections":
        """Connections within ``limits``, fewer if this process may not open that many files."""
        most, left = connections_within_descriptors(limits.max_connections)
        if most < limits.max_connections:
            logger.warning("at most %d connections are taken: this process may not open more files", most)
        reduced = msgspec.structs.replace(limits, max_connections=most)
        return cls(reduced, min(MAX_TURNED_AWAY, left // 4), min(MAX_PROBES, left // 8))

    def __init__(
        self, limits: ConnectionLimits, max_turned_away: int = MAX_TURNED_AWAY, max_probes: int = MAX_PROBES
    ) -> None:
        self.limits: Final = limits
        self._max_turned_away = max_turned_away
        self._max_probes = max_probes
        self._open = 0
        self._turned_away = 0
        self._probes = 0
        self._of_client: Counter[Client] = Counter()
        self._probes_of_client: Counter[Client] = Counter()
        self.refused: Final[Counter[int]] = Counter()
        """Refusals by HTTP status, for connections whose bytes did not reach the application as a request."""

    @property
    def open(self) -> int:
        """Without those that are being turned away or may only probe."""
        return self._open

    def enter(self, peername: Any) -> "ConnectionSlot":
        """``peername`` is the socket's peer address."""
        client = client_of(peername)
        place = self._admit(client)
        self._count(place, 1)
        return place

    def _admit(self, client: Client | None) -> "ConnectionSlot":
        limits = self.limits
        if limits.max_per_client and client is not None and self._of_client[client] >= limits.max_per_client:
            refusal = f"You hold {limits.max_per_client} connections, as many as one client may; close some."
        elif limits.max_connections and self._open >= limits.max_connections:
            refusal = f"This server holds {limits.max_connections} connections, as many as it may; try again later."
            if self._probes < self._max_probes and (
                client is None or self._probes_of_client[client] < MAX_PROBES_PER_CLIENT
            ):
                return ConnectionSlot(self, client, refusal, only_probes=True)
        else:
            return ConnectionSlot(self, client, None)
        return ConnectionSlot(self, client, refusal, without_a_word=self._turned_away >= self._max_turned_away)

    def _count(self, place: "ConnectionSlot", step: int) -> None:
        if place.only_probes:
            self._probes += step
            _add(self._probes_of_client, place.client, step)
        elif place.refusal is not None:
            self._turned_away += step
        else:
            self._open += step
            _add(self._of_client, place.client, step)


def _add(counts: Counter[Client], client: Client | None, step: int) -> None:
    if client is not None:
        counts[client] += step
        if not counts[client]:
            del counts[client]


class ConnectionSlot(msgspec.Struct, eq=False):
    """A connection's slot in the count, or the reason why it gets none."""

    _owner: Connections | None
    client: Client | None
    refusal: str | None
    """For the client, or None where it may stay."""
    only_probes: bool = False
    """One head is read: a probe is answered, other requests get ``refusal``."""
    without_a_word: bool = False
    """Whether the connection gets no response, because too many are being refused at once."""

    def leave(self) -> None:
        """The connection is gone. May be called again."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner._count(self, -1)


def client_of(peername: Any) -> Client | None:
    """A client's address, for IPv6 the /64 of one customer; None if there is none."""
    if not isinstance(peername, tuple):
        return None  # a socket in the file system
    host = str(peername[0])
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped) if address.ipv4_mapped is not None else address.packed[:8]
