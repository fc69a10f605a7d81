"""Formats by which models separate reasoning from answers."""
