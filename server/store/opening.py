"""The store of a server, with everything that it keeps."""

from typing import Final

from ..config import StoreConfig
from . import conversations, responses, secrets
from .database import Database, Table

# modules have what the protocol asks for; mypy compares them member by member
TABLES: Final[tuple[Table, ...]] = (responses, conversations, secrets)


def make_store(config: StoreConfig) -> Database:
    """Its owner must close it; it opens by itself."""
    return Database(TABLES, config.path, ttl=config.ttl, max_bytes=config.max_bytes)
