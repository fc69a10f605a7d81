"""Readers of encoder-decoders from text to text."""
