"""Tensor operations. Imports nothing else of Stentor."""
