"""Benchmarks of embeddings: speed beside sentence-transformers, latency under load, effect on chat streams."""
