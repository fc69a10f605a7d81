"""Storage of objects: one SQLite database, owned by one thread."""
