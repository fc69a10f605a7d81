"""Every option there is, a table for each group."""

from typing import Final

from . import door, engine, limits, mcp, media, model, models, observe, overload, realtime, recovery, server, store

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
    *door.OPTIONS,
)
