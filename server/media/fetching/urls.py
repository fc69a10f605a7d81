"""Strict parsing of URLs, so that no later parser can read them differently.

Attacks on fetchers use parsers that disagree about a URL's host. So unusual URLs are refused, and the requested URL is
rebuilt from the checked parts.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final
from urllib.parse import quote, urljoin

import idna
import msgspec

from ..refusal import Refusal
from .addresses import Address

MAX_URL_CHARS: Final = 8192
"""Characters of all but a ``data:`` URL, which contains its content."""

_PARTS: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?(?:#.*)?"
)
_HAS_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_UNCLEAN: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029\ud800-\udfff]")
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]@]*\]|[^\[\]@:]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_SAFE: Final = "".join(map(chr, range(0x21, 0x7F)))


class Target(msgspec.Struct, frozen=True):
    """A request's destination, normalised."""

    scheme: str
    """``http`` or ``https``."""
    host: str
    """A name in lower-case ASCII without a last dot, or an address without brackets."""
    port: int
    path: str
    """With the query; ASCII."""
    address: Address | None
    """Set if the host is an address."""

    @property
    def authority(self) -> str:
        """Host and port as a ``Host`` header names them, without the default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def joined(self, location: str) -> "Target":
        """The target of a redirect. Raises :class:`..refusal.Refusal`."""
        check_spelling(location)
        if _HAS_SCHEME.match(location):
            return parse(location)
        if location.startswith("//"):
            return parse(f"{self.scheme}:{location}")
        return parse(f"{self.scheme}://{self.authority}{urljoin(self.path, location)}")


def scheme_of(url: str) -> str:
    """In lower case; empty without a scheme."""
    scheme, colon, _ = url[:32].partition(":")
    return scheme.lower() if colon else ""


def check_spelling(url: str) -> None:
    """Raises :class:`..refusal.Refusal` for characters that no URL holds, or too many of them."""
    if len(url) > MAX_URL_CHARS:
        raise Refusal(f"the URL has more than {MAX_URL_CHARS} characters")
    if _UNCLEAN.search(url):
        raise Refusal("the URL holds a space, a control character or a backslash; encode it as `%` and two digits")


def parse(url: str) -> Target:
    """The target of an ``http`` or ``https`` URL. Raises :class:`..refusal.Refusal`."""
    check_spelling(url)
    parts = _PARTS.fullmatch(url)
    if parts is None:
        raise Refusal("this is not a whole URL, such as `https://example.com/image.png`")
    scheme = parts["scheme"].lower()
    if scheme not in _DEFAULT_PORTS:
        raise Refusal(f"URLs of the scheme `{scheme[:16]}` are not fetched")
    if "@" in parts["authority"]:
        raise Refusal("the URL must not hold a user name or a password")
    authority = _AUTHORITY.fullmatch(parts["authority"])
    if authority is None:
        raise Refusal("the URL names no host, or one that cannot be read")
    port = int(authority["port"] or _DEFAULT_PORTS[scheme])
    host, address = read_host(authority["host"])
    path = (parts["path"] or "/") + (parts["query"] or "")
    return Target(scheme, host, port, quote(path, safe=_SAFE), address)


def read_host(text: str) -> tuple[str, Address | None]:
    """A host in its one spelling, and its address if it is one. Raises :class:`..refusal.Refusal`.

    An address of version 4 is four plain decimal numbers. The other spellings (one number, octal,
    hexadecimal, fewer parts) are read differently by different programs, so they are refused.
    """
    if text.startswith("["):
        return _read_ipv6(text[1:-1])
    name = text.lower()
    if not name.isascii():
        try:
            name = idna.encode(name, uts46=True).decode("ascii").lower()
        except UnicodeError:
            raise Refusal("the URL's host is not a domain name") from None
    name = name.removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise Refusal("the URL's host is not a domain name")
    if not _NUMBER.fullmatch(labels[-1]):
        return name, None
    try:
        address = IPv4Address(name)
    except AddressValueError:
        raise Refusal("the URL's host looks like an address, but is not four decimal numbers") from None
    return str(address), address


def _read_ipv6(text: str) -> tuple[str, Address]:
    try:
        if "%" in text:
            raise AddressValueError
        address = IPv6Address(text)
    except AddressValueError:
        raise Refusal("the URL's host in brackets is not an address of IP version 6") from None
    return str(address), address
