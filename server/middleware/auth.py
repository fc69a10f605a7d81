"""Requires keys. Every route needs one except the probes and the page, so a new route is protected by default."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.protocols.common.errors import ErrorBody

from ..common.fair_queue import current_owner
from ..common.keys import ANYONE, Caller, Keyring, tokens_of
from ..http.error_responses import can_respond, respond
from ..http.root_path import route_path
from ..observability.request import note_error
from ..web import PATHS
from .client_secrets import PREFIX, ClientSecret, ClientSecrets, SecretKind
from .hosts import Hosts
from .origins import Origins

PROBES: Final = frozenset({"/health", "/ping"})
_READING: Final = frozenset({"GET", "HEAD"})

SECRET_PATHS: Final[Mapping[tuple[str, str], SecretKind]] = {
    ("websocket", "/v1/realtime"): "realtime",
    ("http", "/v1/realtime/calls"): "realtime",
    ("websocket", "/v1/realtime/translations"): "translation",
    ("http", "/v1/realtime/translations/calls"): "translation",
}
"""Routes for client secrets, and the sessions that they open."""

_CALLER: Final = "stentor.caller"
_SECRET: Final = "stentor.client_secret"
_HOW: Final = "send `Authorization: Bearer <key>` or `x-api-key: <key>`"


class _Refusal(msgspec.Struct, frozen=True):
    status: int
    message: str
    code: str


_CLOSED: Final = _Refusal(
    403,
    "Control routes are closed. To open them, start the server with --admin-key-file or --admin-key.",
    "admin_closed",
)
_BAD_SECRET: Final = _Refusal(
    401, "This client secret is not good here, or no more; get another one.", "invalid_api_key"
)
_FOREIGN: Final = _Refusal(
    403,
    "Web pages of this origin may not use this server. To let them, start it with --cors-origin and the origin.",
    "origin_not_allowed",
)


def is_open(path: str, method: str) -> bool:
    """Whether a request needs no key; other methods of the page's paths need one."""
    return path in PROBES or (path in PATHS and method in _READING)


def caller_of(scope: Scope) -> Caller:
    """On whose behalf the request is made; a scope that passed no guard is anyone's."""
    caller = scope.get(_CALLER)
    return caller if isinstance(caller, Caller) else ANYONE


def secret_of(scope: Scope) -> ClientSecret | None:
    """The client secret that a WebSocket or a call was opened with."""
    secret = scope.get(_SECRET)
    return secret if isinstance(secret, ClientSecret) else None


def act_for(scope: Scope, caller: Caller) -> None:
    """Sets the caller of a request that came over no connection and whose caller was authenticated before.

    For the running task, and those that it starts, too: see :data:`..common.fair_queue.current_owner`.
    """
    scope[_CALLER] = caller
    current_owner.set(caller.owner)


class RequireKey:
    """Lets a request pass that has a key of ``keys``, where that has any, and notes whose it is.

    WebSockets, and without keys every request, must also come from no web page, or from one that is allowed. Without
    keys, or where ``hosts`` are given, all but the probes must name a host that is ours.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keyring,
        origins: Origins,
        hosts: Hosts | None = None,
        secrets: ClientSecrets | None = None,
    ) -> None:
        self.app = app
        self._keys = keys
        self._origins = origins
        self._hosts = hosts or Hosts()
        self._secrets = secrets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        caller = self._keys.caller(scope["headers"])
        path = route_path(scope)
        secret_is_bad = False
        kind = SECRET_PATHS.get((scope["type"], path))
        if caller is None and kind is not None:
            secret, secret_is_bad = self._secret(scope, kind)
            if secret is not None:
                caller = secret.caller
                scope[_SECRET] = secret
        act_for(scope, caller or ANYONE)
        refusal = None
        if secret_is_bad:
            refusal = _BAD_SECRET
        elif path not in PROBES:
            refusal = self._refusal(scope, path, caller)
        if refusal is None:
            await self.app(scope, receive, send)
        elif can_respond(scope):
            await _refuse(scope, refusal)(scope, receive, send)
        else:
            note_error(refusal.code)
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})

    def _secret(self, scope: Scope, kind: SecretKind) -> tuple[ClientSecret | None, bool]:
        """The client secret of a request, and whether it has one that is invalid, expired or for other sessions."""
        given = [token for token in tokens_of(scope["headers"]) if token.startswith(PREFIX.encode())]
        for token in given:
            secret = None if self._secrets is None else self._secrets.find(token)
            # the key of its creator may have been removed
            if secret is not None and secret.kind == kind and self._keys.owner(secret.caller.owner) is not None:
                return secret, False
        return None, bool(given)

    def _refusal(self, scope: Scope, path: str, caller: Caller | None) -> _Refusal | None:
        required = self._keys.required
        if is_open(path, scope.get("method", "")):
            return self._host_refusal(scope, caller)
        if caller is None and required:
            return _Refusal(401, f"A valid API key is required: {_HOW}.", "invalid_api_key")
        if (refusal := self._host_refusal(scope, caller)) is not None:
            return refusal
        # A page that sends a key got it from a user; without one, its origin decides.
        if scope["type"] == "websocket" or not required:
            keyless = caller is None
            if not self._origins.admit(scope["headers"], keyless=keyless, hosts=self._hosts):
                return _FOREIGN
        return None

    def _host_refusal(self, scope: Scope, caller: Caller | None) -> _Refusal | None:
        keyless = caller is None and not self._keys.required  # a page of another's name has no key of ours
        if not (keyless or self._hosts):
            return None
        name = self._hosts.refused(scope["headers"])
        return None if name is None else _foreign_host(name, keyless=keyless)


def _foreign_host(name: str, *, keyless: bool) -> _Refusal:
    """``name`` is empty where the request names none that can be read."""
    if not name:
        message = "The request must have one `Host` header, with the name or address that this server is reached by."
        return _Refusal(403, message, "host_not_allowed")
    message = (
        f"This server does not answer as `{name}`. To let it, start it with --allowed-host {name}"
        f"{', or with an API key (--api-key-file)' if keyless else ''}. An address, `localhost` or a name without a "
        "dot will do, too."
    )
    return _Refusal(403, message, "host_not_allowed")


class AdminRoute(Route):
    """A route that changes the server or reports about all callers: it needs an admin key.

    Without admin keys on the server it is closed, or, with ``open_without``, accepts any key. :class:`RequireKey`
    checks it first, as all others.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response] | Response],
        keys: Keyring,
        *,
        methods: Collection[str],
        open_without: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(path, endpoint, methods=list(methods), **options)
        self.app = _RequireAdmin(self.app, keys, open_without)


class _RequireAdmin:
    def __init__(self, app: ASGIApp, keys: Keyring, open_without: bool) -> None:
        self.app = app
        self._keys = keys
        self._open_without = open_without

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = caller_of(scope)
        closed = not self._keys.has_admin
        if closed and not self._open_without:
            await _refuse(scope, _CLOSED)(scope, receive, send)
        elif closed or caller.admin:
            await self.app(scope, receive, send)
        else:
            status = 401 if caller is ANYONE else 403
            missing = _Refusal(status, f"An admin key is required: {_HOW}.", "admin_key_required")
            await _refuse(scope, missing)(scope, receive, send)


def _refuse(scope: Scope, refusal: _Refusal) -> Response:
    headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
    body = ErrorBody(refusal.message, "invalid_request_error", None, refusal.code)
    return respond(scope, refusal.status, body, headers)
