"""What is measured of media in requests."""

from prometheus_client import CollectorRegistry

from ..observability.declarations import Declarations


class MediaMetrics:
    """Under vLLM's names."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        made = Declarations(registry, model)
        self.queries = made.counter(
            "mm_cache_queries",
            "Images, sounds and videos of requests that were looked up in the cache of processed media.",
        )
        self.hits = made.counter(
            "mm_cache_hits", "Images, sounds and videos of requests that need not be processed: they were in the cache."
        )
