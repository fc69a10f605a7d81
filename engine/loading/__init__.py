"""Finds and fetches models by name, and reads their files as named tensors."""
