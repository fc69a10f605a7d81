"""Metrics of the embedding model."""

from prometheus_client import CollectorRegistry, Counter


class EmbeddingMetrics:
    """The model's first name is the only label."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"stentor:embedding_{name}", text, ("model_name",), registry=registry).labels(model)

        self._texts = counter("texts", "Texts that the embedding model has computed; a pair counts once.")
        self._tokens = counter("tokens", "Tokens of the texts that the embedding model has computed.")

    def pooled(self, texts: int, tokens: int) -> None:
        self._texts.inc(texts)
        self._tokens.inc(tokens)
