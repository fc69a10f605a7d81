"""Opens a server's store, with all tables."""

from typing import Final

from ..config.config import StoreConfig
from . import batches, chats, conversations, files, responses, secrets, uploads
from .database import Database, is_full

TABLES: Final = (
    responses.TABLE,
    chats.TABLE,
    conversations.TABLE,
    secrets.TABLE,
    batches.TABLE,
    files.TABLE,
    uploads.TABLE,
)


def make_store(config: StoreConfig) -> Database:
    """The caller must close it; it opens on first use."""
    return Database(TABLES, config.path, ttl=config.ttl, max_bytes=config.max_bytes)


class StoreRefused(Exception):
    """The file cannot be used; the message says why."""


async def opened_store(config: StoreConfig) -> Database:
    """Makes the store and opens its file, if it has one, at once. The caller must close it. Raises StoreRefused."""
    store = make_store(config)
    if config.path is not None:
        import sqlite3  # late: not every server has a store

        try:
            await store.open()
        except (OSError, sqlite3.Error) as error:
            await store.close()
            if is_full(error):
                advice = "make room"
            elif getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT:
                advice = "put a backup in its place, or move it away and start with an empty store"
            else:
                advice = "give a file that this server can write and that no other server uses"
            raise StoreRefused(f"Cannot use --store {config.path}: {error}; {advice}.") from error
    return store
