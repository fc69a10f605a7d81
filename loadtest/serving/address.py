"""Where a server is."""

from urllib.parse import urlsplit

import msgspec

from ..tool import UsageError

_PORTS = {"http": 80, "https": 443}


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
    """``http://host:port/prefix``, a trailing ``/v1`` dropped. Raises :class:`.tool.UsageError`."""
    try:
        split = urlsplit(url if "://" in url else f"http://{url}")
        port = split.port or _PORTS[split.scheme]
        if not split.hostname:
            raise ValueError
    except (ValueError, KeyError):  # of the port or the host, of the scheme
        raise UsageError(f"{url} is no address of a server: expected http://HOST:PORT or https://HOST") from None
    prefix = split.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(split.scheme, split.hostname, port, prefix)
