"""A model that makes vectors and scores of texts: from a client's texts to tokens, and from the engine's numbers to
what each protocol says."""
