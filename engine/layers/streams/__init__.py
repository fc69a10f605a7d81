"""Decoders with several residual streams."""
