"""Attention of every kind, and what chooses the keys that it reads."""
