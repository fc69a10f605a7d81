"""Metrics of media in requests."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter

from ..observability.declarations import MODEL

_QUERIES: Final = "Images, sounds and videos of requests that were looked up in the cache of processed media."
_HITS: Final = "Images, sounds and videos of requests that need not be processed: they were in the cache."


class MediaMetrics:
    """Metrics of one model, with vLLM's names."""

    def __init__(self, registry: CollectorRegistry, model: str, declared: "MediaMetrics | None" = None) -> None:
        """``declared``: metrics of another model in this registry, if there are any."""
        self._families: tuple[Counter, Counter]
        if declared is None:
            self._families = (
                Counter("stentor:mm_cache_queries", _QUERIES, (MODEL,), registry=registry),
                Counter("stentor:mm_cache_hits", _HITS, (MODEL,), registry=registry),
            )
        else:
            self._families = declared._families
        self.queries, self.hits = (family.labels(model) for family in self._families)
