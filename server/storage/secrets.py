"""Secrets of the server, stored with the database."""

import os
from typing import TYPE_CHECKING, Final

from .table import Table

if TYPE_CHECKING:
    import sqlite3

TABLE: Final = Table("CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);")

_BYTES: Final = 32


def secret(db: "sqlite3.Connection", name: str) -> bytes:
    """Generated on first use."""
    db.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, os.urandom(_BYTES)))
    return bytes(db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()[0])
