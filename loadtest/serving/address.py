"""Where a server is."""

from urllib.parse import urlsplit

import msgspec

_PORTS = {"http": 80, "https": 443}


class AddressError(ValueError):
    """Not where a server could be; the message is one line."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url} is no address of a server: expected http://HOST:PORT or https://HOST")


class Address(msgspec.Struct, frozen=True):
    """Where requests go: the base of a server, without ``/v1``."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """``http://host:port/prefix``, a trailing ``/v1`` dropped. Raises :class:`AddressError`."""
    try:
        split = urlsplit(url if "://" in url else f"http://{url}")
        port = split.port
    except ValueError:  # of the port
        raise AddressError(url) from None
    if split.scheme not in _PORTS or not split.hostname:
        raise AddressError(url)
    prefix = split.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(split.scheme, split.hostname, port or _PORTS[split.scheme], prefix)
