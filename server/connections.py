"""Who may hold connections, and how many."""

import ipaddress
import logging
from collections import Counter
from typing import Any, Final

import msgspec

from .config import ConnectionLimits
from .listening import connections_within_descriptors

logger = logging.getLogger(__name__)

MAX_TURNED_AWAY: Final = 256
"""Connections that are told why they are refused; one more is closed without a word."""

Client = str | bytes


class Connections:
    """The open connections of one listener, counted."""

    @classmethod
    def within_descriptors(cls, limits: ConnectionLimits) -> "Connections":
        """As ``limits`` say, or fewer where this process may not open as many files."""
        most = connections_within_descriptors(limits.max_connections)
        if most == limits.max_connections:
            return cls(limits)
        if limits.max_connections:
            logger.warning("at most %d connections are taken: this process may not open more files", most)
        return cls(msgspec.structs.replace(limits, max_connections=most), min(MAX_TURNED_AWAY, most // 4))

    def __init__(self, limits: ConnectionLimits, max_turned_away: int = MAX_TURNED_AWAY) -> None:
        self.limits: Final = limits
        self._max_turned_away = max_turned_away
        self._open = 0
        self._turned_away = 0
        self._of_client: Counter[Client] = Counter()
        self.refused: Final[Counter[int]] = Counter()
        """By HTTP status: whoever was turned away before what it sent was a request that the application saw."""

    @property
    def open(self) -> int:
        """Without those that are being turned away."""
        return self._open

    def enter(self, peername: Any) -> "Place":
        """``peername`` is what the socket says of its other end."""
        client = client_of(peername)
        refusal = self._refusal(client)
        place = Place(self, client, refusal, refusal is not None and self._turned_away >= self._max_turned_away)
        self._count(place, 1)
        return place

    def _refusal(self, client: Client | None) -> str | None:
        limits = self.limits
        if limits.max_connections and self._open >= limits.max_connections:
            return f"This server holds {limits.max_connections} connections, as many as it may; try again later."
        if limits.max_per_client and client is not None and self._of_client[client] >= limits.max_per_client:
            return f"You hold {limits.max_per_client} connections, as many as one client may; close some."
        return None

    def _count(self, place: "Place", step: int) -> None:
        if place.refusal is not None:
            self._turned_away += step
            return
        self._open += step
        if place.client is not None:
            self._of_client[place.client] += step
            if not self._of_client[place.client]:
                del self._of_client[place.client]


class Place:
    """What one connection holds of the count, or why it gets none."""

    __slots__ = ("_owner", "client", "refusal", "without_a_word")

    def __init__(self, owner: Connections, client: Client | None, refusal: str | None, without_a_word: bool) -> None:
        self._owner: Connections | None = owner
        self.client = client
        self.refusal = refusal
        """For the client, or None where it may stay."""
        self.without_a_word = without_a_word
        """So many are being refused that this one is not even told."""

    def leave(self) -> None:
        """The connection is gone. May be called again."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner._count(self, -1)


def client_of(peername: Any) -> Client | None:
    """The address of a client, of IPv6 the /64 that one customer has to themselves; None where there is none."""
    if not isinstance(peername, tuple):
        return None  # a socket in the file system
    host = str(peername[0])
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped) if address.ipv4_mapped is not None else address.packed[:8]
