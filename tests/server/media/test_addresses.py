"""Addresses and the hosts of URLs: public or not, and read in one way or refused."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stentor.server.media.fetching.addresses import OWN, is_public, may_reach
from stentor.server.media.fetching.urls import parse, read_host
from stentor.server.media.refusal import Refusal

SPECIAL_IPV4 = list(map(ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")))
MULTICAST = ip_network("224.0.0.0/4")
SPECIAL_IPV6 = list(map(ip_network, ("2001::/23", "2002::/16", "3fff::/20")))
NEAR = [network for network in OWN if network.version == 4]


@st.composite
def edges(draw: st.DrawFn) -> IPv4Address:
    """Just inside or outside of a network that is ours."""
    network = draw(st.sampled_from(NEAR))
    edge = draw(st.sampled_from([int(network.network_address), int(network.broadcast_address)]))
    return IPv4Address(max(0, min(2**32 - 1, edge + draw(st.integers(-2, 2)))))


@given(st.one_of(st.ip_addresses(v=4), edges()))
def test_an_address_of_version_4_is_public_where_the_standard_library_says_so(address: IPv4Address) -> None:
    special = address in MULTICAST or any(address in network for network in SPECIAL_IPV4)
    assert is_public(address) == (address.is_global and not special)


@given(st.one_of(st.ip_addresses(v=6), st.integers(0x2000 << 112, (0x4000 << 112) - 1).map(IPv6Address)))
@example(IPv6Address("2606:4700::1111"))
@example(IPv6Address("2001:db8::1"))
def test_an_address_of_version_6_is_public_where_the_standard_library_says_so(address: IPv6Address) -> None:
    if is_public(address):
        assert address.is_global
    elif address in ip_network("2000::/3") and not any(address in network for network in SPECIAL_IPV6):
        assert not address.is_global


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:0:0", "::", "::ffff:0:0:0", "2002::", "64:ff9b:1::", "2001::"]))
def test_an_address_within_another_is_never_public(inner: IPv4Address, prefix: str) -> None:
    shift = 80 if prefix == "2002::" else 0
    assert not is_public(IPv6Address(int(IPv6Address(prefix)) | int(inner) << shift))


@given(st.one_of(st.ip_addresses(v=4), edges()))
def test_translation_makes_nothing_public(inner: IPv4Address) -> None:
    assert is_public(IPv6Address(int(IPv6Address("64:ff9b::")) | int(inner))) == is_public(inner)


@given(st.one_of(st.ip_addresses(), edges()))
def test_opening_everything_opens_no_more_than_one_s_own(address: IPv4Address | IPv6Address) -> None:
    everything = (ip_network("0.0.0.0/0"), ip_network("::/0"))
    own = any(address in network for network in OWN)
    if may_reach(address, everything):
        assert own or is_public(address)
    assert may_reach(address) == is_public(address)
    assert not (own and is_public(address))


@pytest.mark.parametrize(
    "text", ["169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254"]
)
def test_metadata_stays_closed(text: str) -> None:
    assert not may_reach(ip_address(text), OWN)


@given(st.ip_addresses(v=4))
def test_a_spelling_other_than_four_decimal_numbers_is_refused(address: IPv4Address) -> None:
    number = int(address)
    parts = str(address).split(".")
    octal = ".".join(f"0{int(part):o}" for part in parts)
    for text in (str(number), hex(number), f"0{number:o}", f"{parts[0]}.{number & 0xFFFFFF}", octal, f"{address}.1"):
        with pytest.raises(Refusal):
            read_host(text)
    wide = "".join(chr(ord(char) + 0xFEE0) if char.isdigit() else char for char in str(address))
    for text in (str(address), f"{address}.", wide, str(address).replace(".", "。")):
        assert read_host(text) == (str(address), address)


@given(st.text(max_size=60))
@example("http://a\u3002b/")
@example("http://faß.test/")
@example("http://xn--a/")
def test_any_text_is_read_as_ascii_or_refused(text: str) -> None:
    for url in (text, f"http://{text}/", f"https://example.com/{text}"):
        try:
            target = parse(url)
        except Refusal:
            continue
        assert (target.authority + target.path).isascii()
        assert not set(target.authority) & set(" \t\r\n@\\/?#")
        assert parse(f"{target.scheme}://{target.authority}{target.path}") == target
