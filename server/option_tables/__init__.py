"""Every option there is, a table for each group."""

from typing import Final

from . import engine, model, server

OPTIONS: Final = (*model.OPTIONS, *engine.OPTIONS, *server.OPTIONS)
