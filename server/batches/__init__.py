"""Batches: files of requests that are answered apart from any connection, when there is room for them."""
