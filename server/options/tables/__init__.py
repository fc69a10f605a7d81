"""Every option there is, a table for each group."""

from typing import Final

from . import access, engine, limits, mcp, media, model, models, observe, overload, realtime, recovery, server, store

OPTIONS: Final = (
    *model.OPTIONS,
    *models.OPTIONS,
    *engine.OPTIONS,
    *recovery.OPTIONS,
    *limits.OPTIONS,
    *overload.OPTIONS,
    *media.OPTIONS,
    *realtime.OPTIONS,
    *store.OPTIONS,
    *mcp.OPTIONS,
    *server.OPTIONS,
    *observe.OPTIONS,
    *access.OPTIONS,
)

GROUPS: Final = {
    "model": "model",
    "models": "other models",
    "engine": "engine",
    "recovery": "recovery",
    "overload": "overload",
    "media": "media in requests",
    "store": "storage",
    "limits": "limits on requests",
    "realtime": "realtime sessions",
    "tools": "tool servers",
    "server": "server",
    "access": "access",
}
"""Titles, in the order in which they are shown."""
