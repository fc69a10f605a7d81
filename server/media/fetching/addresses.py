"""Addresses that the server may contact for clients.

Only addresses known to be public are allowed. The ranges are those of IANA's special-purpose registries (RFC 6890 and
later), listed here because the standard library's lists differ between Python releases.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

OWN: Final[tuple[Network, ...]] = tuple(
    ip_network(text)
    for text in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),  # private
        *("127.0.0.0/8", "::1/128"),  # this machine
        "100.64.0.0/10",  # behind a provider's translation
    )
)
"""Private networks, which an operator may allow."""

_CLOSED: Final[tuple[Network, ...]] = tuple(
    ip_network(text)
    for text in (
        # clouds give credentials to processes of the machine there
        *("169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32", "fd00:ec2::/32", "fd20:ce::/32"),
        "0.0.0.0/8",  # reaches this machine
        *("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15"),  # protocols, 6to4 relays, benchmarks
        *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),  # documentation
        *("224.0.0.0/4", "240.0.0.0/4"),  # multicast, reserved and broadcast
        *("2001::/23", "2002::/16"),  # protocols, Teredo among them, and 6to4
        *("2001:db8::/32", "3fff::/20"),  # documentation
    )
)
"""Refused even where ``OWN`` is opened."""

_GLOBAL_IPV6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether ``address`` is reachable from the whole internet.

    IPv6 addresses that contain an IPv4 address are refused, whatever they contain, except NAT64 (RFC 6052), by which
    networks without IPv4 reach the rest.
    """
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _GLOBAL_IPV6:
            return False
    return not _lies_in(address, _CLOSED) and not _lies_in(address, OWN)


def may_reach(address: Address, opened: Iterable[Network] = ()) -> bool:
    """Whether to connect to ``address``: it is public, or in one of ``opened`` and in ``OWN``."""
    if is_public(address):
        return True
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    return _lies_in(address, opened) and _lies_in(address, OWN) and not _lies_in(address, _CLOSED)


def _lies_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)
