"""Fetches clients' URLs, so that a client reaches nothing through the server that it could not reach itself.

A name is resolved once for each request, all its addresses are checked, and the connection goes to one of them: a name
that resolves differently a moment later gains nothing. ``Host`` and the certificate check still use the name. Redirects
are followed here, each checked like a new URL.
"""

import logging
import ssl
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from stentor.protocols.common.errors import BadRequest

from ...common.errors import Overloaded
from ...config.media import MediaConfig
from ..parts import Media
from ..refusal import TIMEOUT, UNAVAILABLE, Refusal, too_large
from .addresses import OWN, Address, Network
from .local_urls import decode_data_url, read_file_url
from .resolving import Resolve, addresses_of, resolve
from .urls import Target, parse, scheme_of

if TYPE_CHECKING:
    import httpx  # late: few servers fetch anything, and it takes a tenth of a second

logger = logging.getLogger(__name__)

MAX_REDIRECTS: Final = 3
_PORTS: Final = (80, 443)
_CONNECT_SECONDS: Final = 5.0
_SHARE: Final = 4
"""How many of the largest size may be in memory at once, of all that are being fetched."""
_RETRY_SECONDS: Final = 2
_INLINE_CHARS: Final = 64 * 1024
"""A longer ``data:`` URL is decoded off the event loop."""


class Fetcher:
    """Fetches within the bounds of ``config``; one is enough for a server, on one event loop."""

    def __init__(
        self,
        config: MediaConfig,
        *,
        resolve: Resolve = resolve,
        opened: Sequence[Network] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """
        Args:
            opened: networks of our own that may be fetched from; None asks ``config``.
            tls: the trusted authorities; None: the authorities that ``certifi`` lists.
        """
        self._config = config
        self._resolve = resolve
        self._opened = (OWN if config.allow_private else ()) if opened is None else tuple(opened)
        self._ports = frozenset((*_PORTS, *config.ports))
        self._tls = tls
        self._places = anyio.Semaphore(config.max_fetches)
        self._held = 0
        """Bytes of all that is being fetched."""

    async def fetch(self, url: str, param: str) -> Media:
        """The media at ``url``; ``param`` is its field.

        Raises BadRequest naming the field for a fault of the URL or of its host, and
        :class:`~...common.errors.Overloaded` if too many fetches run for this one to begin or continue.
        """
        began = False
        try:
            if scheme_of(url) == "data":
                return await self._decode(url)
            with anyio.fail_after(self._config.timeout):
                async with self._places:
                    began = True
                    return await self._fetch(url)
        except Refusal as refusal:
            raise BadRequest(f"`{param}`: {refusal}.", param, refusal.code) from None
        except TimeoutError:
            if not began:
                raise _busy() from None
            said = f"it took longer than {self._config.timeout:g} seconds to fetch"
            raise BadRequest(f"`{param}`: {said}.", param, TIMEOUT) from None

    async def _decode(self, url: str) -> Media:
        decode = partial(decode_data_url, url, self._config.max_bytes)
        return Media(*(decode() if len(url) <= _INLINE_CHARS else await anyio.to_thread.run_sync(decode)))

    async def _fetch(self, url: str) -> Media:
        match scheme_of(url):
            case "file" if self._config.root is not None:
                return await self._read(url, self._config.root)
            case "":
                raise Refusal("this is not a whole URL, such as `https://example.com/image.png`")
            case _:
                return await self._download(parse(url))

    async def _read(self, url: str, root: Path) -> Media:
        read = partial(read_file_url, url, root, self._config.max_bytes)
        return Media(*await anyio.to_thread.run_sync(read, abandon_on_cancel=True))

    async def _download(self, target: Target) -> Media:
        await anyio.to_thread.run_sync(_trusted)
        for _ in range(MAX_REDIRECTS + 1):
            self._check(target)
            answer = await self._request(target, await addresses_of(target, self._resolve, self._opened))
            if isinstance(answer, Media):
                return answer
            following = target.joined(answer)
            if (target.scheme, following.scheme) == ("https", "http"):
                raise Refusal("it redirects from https to http")
            target = following
        raise Refusal(f"it redirects more than {MAX_REDIRECTS} times")

    def _check(self, target: Target) -> None:
        if target.scheme == "http" and not self._config.allow_http:
            raise Refusal("URLs of the scheme `http` are not fetched; use https")
        if target.port not in self._ports:
            raise Refusal(f"the port {target.port} is not open to fetches")
        domains = self._config.domains
        if domains and not any(_matches(target.host, domain) for domain in domains):
            raise Refusal("the URL's host is not among those that this server fetches from")

    async def _request(self, target: Target, addresses: Sequence[Address]) -> Media | str:
        """The answer, or where it redirects to."""
        import httpx

        for number, address in enumerate(addresses, 1):
            try:
                return await self._request_from(target, address)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                logger.debug("cannot connect to a host that a request named: %r", error)
                if number == len(addresses):
                    raise Refusal("the URL's host does not answer, or not as itself", UNAVAILABLE) from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                logger.debug("cannot fetch what a request named: %r", error)
                raise Refusal("the URL's host broke off its answer", UNAVAILABLE) from None
        raise AssertionError("there is always an address")

    async def _request_from(self, target: Target, address: Address) -> Media | str:
        import httpx

        # A transport knows neither cookies, proxies nor redirects; a fresh one shares no connection, whose
        # certificate would be for another name, with another fetch.
        async with httpx.AsyncHTTPTransport(verify=self._tls or _trusted(), trust_env=False) as transport:
            seconds = self._config.timeout
            request = httpx.Request(
                "GET",
                httpx.URL(
                    scheme=target.scheme, host=str(address), port=target.port, raw_path=target.path.encode("ascii")
                ),
                headers={
                    "host": target.authority,
                    "user-agent": "stentor",
                    "accept": "*/*",
                    "accept-encoding": "identity",
                    "connection": "close",
                },
                extensions={
                    "sni_hostname": target.host,
                    "timeout": {"connect": _CONNECT_SECONDS, "read": seconds, "write": seconds, "pool": seconds},
                },
            )
            response = await transport.handle_async_request(request)
            try:
                return await self._read_answer(response)
            finally:
                await response.aclose()

    async def _read_answer(self, response: "httpx.Response") -> Media | str:
        limit = self._config.max_bytes
        if response.status_code in (301, 302, 303, 307, 308) and "location" in response.headers:
            return str(response.headers["location"])
        if response.status_code != 200:
            raise Refusal(f"the URL's host answered with status {response.status_code}", UNAVAILABLE)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            raise Refusal("the URL's host sends it compressed, though it was asked not to", UNAVAILABLE)
        declared = response.headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
            raise too_large(limit)
        data = bytearray()
        try:
            async for piece in response.aiter_raw():
                if len(data) + len(piece) > limit:
                    raise too_large(limit)
                data += piece
                self._held += len(piece)
                if self._held > _SHARE * limit:
                    raise _busy()
        finally:
            self._held -= len(data)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return Media(bytes(data), kind or None)


def _busy() -> Overloaded:
    return Overloaded("The server fetches too much at once; try again shortly.", "media_busy", _RETRY_SECONDS)


@cache
def _trusted() -> ssl.SSLContext:
    """The authorities that are trusted; slow at first."""
    import httpx

    return httpx.create_ssl_context(trust_env=False)


def _matches(host: str, domain: str) -> bool:
    """``*.example.com`` is every name below it, and not itself."""
    return host.endswith(domain[1:]) if domain.startswith("*.") else host == domain
