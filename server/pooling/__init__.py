"""Pooling models: from a client's texts to tokens, and from the engine's numbers to each protocol's response."""
