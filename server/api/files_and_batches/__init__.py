"""Files, and batches of requests in files."""
