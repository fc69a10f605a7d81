"""Whether the numbers that a model computes here are those it computes elsewhere: perplexity beside transformers'."""
