"""A prefix in front of every path, for a server behind a proxy."""

from starlette.types import ASGIApp, Receive, Scope, Send


def route_path(scope: Scope) -> str:
    """The path as the routes name it, without the prefix."""
    return str(scope["path"])[len(scope.get("root_path", "")) :]


class RootPathMiddleware:
    """Serves the paths below ``prefix``, whether or not the proxy has removed it.

    From here on the path has the prefix once, and ``root_path`` names it, as ASGI requires; :func:`route_path` and
    Starlette's router then agree.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self.app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            path = scope["path"]
            if path != self._prefix and not path.startswith(self._prefix + "/"):
                scope["path"] = self._prefix + path
            elif path == self._prefix:
                scope["path"] = path + "/"
            scope["root_path"] = self._prefix
        await self.app(scope, receive, send)
