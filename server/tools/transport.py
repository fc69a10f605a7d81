"""HTTP to one tool server only. Imported late, with the HTTP client of the `mcp` package.

Whatever that package requests, a request goes to the checked host at a checked address; redirects, compressed answers
and answers beyond the limit are refused.
"""

import ssl
from collections.abc import AsyncIterator
from functools import cache
from typing import Final

import httpx2

from .errors import ToolCallFailed, http_fault, protocol_fault
from .url_allowlist import ServerAddress

MAX_ANSWER_BYTES: Final = 8 << 20
"""Bytes of one response, or of a stream of events."""


@cache
def _trusted() -> ssl.SSLContext:
    return httpx2.create_ssl_context(trust_env=False)


class PinnedTransport(httpx2.AsyncBaseTransport):
    def __init__(self, place: ServerAddress) -> None:
        self._place = place
        self._inner = httpx2.AsyncHTTPTransport(verify=_trusted(), trust_env=False)
        self.fault: ToolCallFailed | None = None
        """Why the last request could not be made."""
        self.refused: int | None = None
        """The status of the last answer to a message, where it was an error."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        target = self._place.target
        url = request.url
        if (url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)) != (
            target.scheme,
            target.host,
            target.port,
        ):
            raise self._broken("the server sends requests elsewhere, where they do not go")
        response = await self._send(request)
        if request.method == "POST":
            self.refused = response.status_code if response.status_code >= 400 else None
        if 300 <= response.status_code < 400:
            await response.aclose()
            self.fault = http_fault(response.status_code, "the server redirects, which is not followed")
            raise httpx2.RemoteProtocolError(str(self.fault), request=request)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            await response.aclose()
            raise self._broken("the server sends its answer compressed, though it was asked not to")
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Bounded(response, self),
            extensions=response.extensions,
        )

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        target, addresses = self._place.target, self._place.addresses
        headers = httpx2.Headers(request.headers)
        headers["host"] = target.authority
        headers["accept-encoding"] = "identity"
        hosts = [target.host] if addresses is None else list(map(str, addresses))
        for number, host in enumerate(hosts, 1):
            sent = httpx2.Request(
                request.method,
                request.url.copy_with(host=host),
                headers=headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": target.host},
            )
            try:
                return await self._inner.handle_async_request(sent)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if number == len(hosts):
                    self.fault = protocol_fault(-32000, "the server does not answer, or not as itself")
                    raise
        raise AssertionError("there is always an address")

    def _broken(self, why: str) -> httpx2.RemoteProtocolError:
        self.fault = protocol_fault(-32000, why)
        return httpx2.RemoteProtocolError(why)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response, guard: PinnedTransport) -> None:
        self._response = response
        self._guard = guard

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        async for piece in self._response.stream:
            taken += len(piece)
            if taken > MAX_ANSWER_BYTES:
                raise self._guard._broken(f"the server's answer is larger than {MAX_ANSWER_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._response.aclose()
