"""Vectors and scores of texts, in the words of vLLM, Cohere and Jina; OpenAI's own are next door."""
