"""What outlives a request: one SQLite database, owned by one thread."""
