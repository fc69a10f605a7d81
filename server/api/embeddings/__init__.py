"""Embeddings, pooling, scores and reranking."""
