"""URLs and addresses in every disguise: read one way or refused, and before any connection."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stentor.server.tools.addresses import OWN, is_public, may_reach
from stentor.server.tools.url_allowlist import ANY_HTTPS, UrlAllowlist, resolve
from stentor.server.tools.urls import Refusal, parse, read_host

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


# ---- whole URLs

METADATA = "169.254.169.254"
FORMS = [
    # other spellings of 127.0.0.1
    "https://127.0.0.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0x7f.1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.1/",
    "https://127.0.1/",
    "https://127.0.0.01/",
    "https://127.0.0.1./",
    "https://127.0.0.1../",
    "https://00000127.0.0.1/",
    "https://127.0.0.1.1/",
    "https://256.0.0.1/",
    "https://0/",
    "https://0x/",
    "https://0.0.0.0/",
    "https://127.255.255.254/",
    "https://\uff11\uff12\uff17.\uff10.\uff10.\uff11/",
    "https://127。0。0。1/",
    "https://①②⑦.0.0.1/",
    "https://127.0.0.\u00ad1/",
    "https://٣.0.0.1/",
    "https://127.0.0.1%2f@example.com/",
    "https://127%2e0%2e0%2e1/",
    # version 6
    "https://[::1]/",
    "https://[::]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::ffff:93.184.215.14]/",
    "https://[::127.0.0.1]/",
    "https://[::ffff:0:127.0.0.1]/",
    "https://[64:ff9b::127.0.0.1]/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[64:ff9b:1::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2002:5db8:d70e::1]/",
    "https://[2001:0:53aa:64c:0:fbff:80ff:fffe]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[2606:4700::1111%251]/",
    "https://[fec0::1]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[fd20:ce::254]/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
    "https://[3fff::1]/",
    "https://[100::1]/",
    "https://[::1/",
    "https://[127.0.0.1]/",
    "https://[v1.x]/",
    # networks
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://169.254.1.1/",
    "https://192.0.0.8/",
    "https://192.0.0.192/",
    "https://192.0.2.1/",
    "https://192.88.99.1/",
    "https://198.18.0.1/",
    "https://198.51.100.1/",
    "https://203.0.113.1/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    # metadata
    f"https://{METADATA}/latest/meta-data/",
    "https://2852039166/",
    "https://0xa9fea9fe/",
    "https://100.100.100.200/",
    "https://168.63.129.16/",
    "https://metadata/",
    "https://metadata.google.internal/",
    # names
    "https://localhost/",
    "https://localhost./",
    "https://LOCALHOST/",
    "https://mixed.test/",
    "https://alias.test/",
    "https://mapped.test/",
    "https://scoped.test/",
    "https://empty.test/",
    "https://unknown.test/",
    "https://nonsense.test/",
    "https://a..test/",
    "https://-a.test/",
    "https://" + "a" * 64 + ".test/",
    "https://" + "a." * 130 + "test/",
    "https://xn--/",
    "https://\u200b/",
    # users, backslashes, spaces, ports
    "https://public.test@127.0.0.1/",
    "https://127.0.0.1@public.test/",
    "https://user:secret@public.test/",
    "https://@public.test/",
    "https://public.test:80@127.0.0.1/",
    "https://public.test\\@127.0.0.1/",
    "https:\\\\127.0.0.1\\",
    "https:/\\127.0.0.1/",
    "https:/127.0.0.1/",
    "https:127.0.0.1/",
    "https:///127.0.0.1/",
    "//127.0.0.1/",
    "127.0.0.1",
    "https://public.test /",
    " http://public.test/",
    "https://public.test/\r\nHost: 127.0.0.1",
    "https://public.test/\t",
    "ht\ntps://public.test/",
    "https://public.test\x00.test/",
    "https://public.test/\ud800",
    "https://public.test:/",
    "https://public.test:0/",
    "https://public.test:65536/",
    "https://public.test:22/",
    "https://public.test:6379/",
    "https://public.test:\uff18\uff10/",
    "https://public.test:80:80/",
    "https://public.test:+80/",
    "https://?x",
    "https://#x",
    "https://",
    "",
    "https://public.test/" + "x" * 9000,
    # schemes
    "ftp://public.test/",
    "gopher://public.test/",
    "ws://public.test/",
    "javascript:alert(1)",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "file://public.test/etc/passwd",
    "unix:/run/docker.sock",
    "http+unix://%2Frun%2Fdocker.sock/",
    "jar:http://public.test/!/",
]
NAMES: dict[str, Sequence[str]] = {
    "public.test": ["93.184.215.14"],
    "localhost": ["127.0.0.1", "::1"],
    "metadata": [METADATA],
    "metadata.google.internal": [METADATA],
    "mixed.test": ["93.184.215.14", "2606:4700::1111", "10.0.0.7"],
    "alias.test": ["192.168.0.1"],
    "mapped.test": ["::ffff:10.0.0.1"],
    "scoped.test": ["fe80::1%2"],
    "nonsense.test": ["not an address"],
    "empty.test": [],
}


async def resolved(host: str, _port: int) -> Sequence[str]:
    if host not in NAMES:
        raise OSError("no such name")
    return NAMES[host]


def test_the_table_is_long_enough_and_repeats_nothing() -> None:
    assert len(set(FORMS)) == len(FORMS) >= 40


@pytest.mark.anyio
@pytest.mark.parametrize("url", FORMS, ids=ascii)
async def test_a_form_is_refused_where_any_public_host_may_be_reached(url: str) -> None:
    with pytest.raises(Refusal) as caught:
        await UrlAllowlist([ANY_HTTPS], resolve=resolved).place(url)
    for secret in ("10.0.0", "192.168", METADATA, "secret", "/etc", "\n"):
        assert secret not in str(caught.value)


@pytest.mark.anyio
async def test_what_is_private_and_what_does_not_exist_are_told_alike() -> None:
    messages = set()
    for host in ("alias.test", "unknown.test", "empty.test", "metadata"):
        with pytest.raises(Refusal) as caught:
            await UrlAllowlist([ANY_HTTPS], resolve=resolved).place(f"https://{host}/")
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.anyio
async def test_the_real_resolver_gives_every_address_once() -> None:
    found = await resolve("localhost", 443)
    assert "127.0.0.1" in found or "::1" in found
    assert len(set(found)) == len(found)
