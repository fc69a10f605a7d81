"""Readers of GGUF metadata: a decoder's specification, and that of a projector file."""
