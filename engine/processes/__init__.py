"""Starts, watches, restarts and ends processes and actors."""
