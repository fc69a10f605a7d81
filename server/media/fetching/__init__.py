"""Bytes of media: in URLs of requests, fetched from allowed hosts, or files of the caller."""
