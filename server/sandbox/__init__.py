"""Killable child processes for clients' input."""
