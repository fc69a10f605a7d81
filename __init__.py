"""Stentor: a single-node server for language and speech models."""

__version__ = "0.1.0"
