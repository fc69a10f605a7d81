"""A model that makes vectors or scores, as the server knows it."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from stentor.engine.model_config.pooling_config import PoolingConfig, tasks_of
from stentor.protocols.ipc.actors import EngineReady
from stentor.protocols.ipc.pooling import Pooling, PoolingTask
from stentor.protocols.ipc.sampling import SamplingParams

from ..text.generation import EngineEventStream
from ..text.pool import TokenizerPool
from .affix_tokens import AffixTokens, PairAffixTokens
from .metrics import EmbeddingMetrics
from .plugin import PoolingPlugin

Compares = Literal["together", "vectors", "tokens", "weights", ""]
"""How two texts are scored: read together by a cross-encoder, by the cosine of their vectors, by the vectors of their
tokens (late interaction), by the product of their weights over the vocabulary, or not at all."""
PairForm = Literal["pair", "qwen3", "bge", "template"]
"""How a query and a document become one prompt: as the tokenizer joins two texts, by the words of Qwen3-Reranker or of
BGE's Gemma, or by the model's chat template, to which they are messages of the roles ``query`` and ``document``."""


class PoolingEngine(Protocol):
    """What takes requests for vectors and scores; see :class:`stentor.engine.client.client.EngineClient`."""

    @property
    def ready(self) -> EngineReady | None: ...

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        seeds: list[int],
        *,
        priority: int = 0,
        salt: str = "",
        name: str = "",
        pooling: Pooling | None = None,
    ) -> EngineEventStream:
        """Raises :class:`stentor.engine.client.client.EngineUnavailable` when the engine takes no requests."""


@dataclass(frozen=True)
class LateInteraction:
    """What a model of late interaction tells queries and documents apart by."""

    query: int | None = None
    """A token that follows the first; None: nothing does."""
    document: int | None = None
    query_length: int = 0
    """In tokens, with all that is special; queries are cut to so many. 0: to what the model takes."""
    document_length: int = 0
    fill: int | None = None
    """The token by which queries are filled up to :attr:`query_length`, where the model sees those, too."""
    skipped: frozenset[int] = frozenset()
    """Tokens of documents that count for nothing: punctuation."""


@dataclass(frozen=True)
class EmbeddingModel:
    """Shared by all requests; nothing of it changes."""

    served_names: tuple[str, ...]
    """Never empty."""
    client: PoolingEngine
    pool: TokenizerPool
    config: PoolingConfig
    ends: AffixTokens
    pair_ends: PairAffixTokens
    pair_form: PairForm = "pair"
    markers: LateInteraction = field(default_factory=LateInteraction)
    metrics: EmbeddingMetrics | None = None
    plugin: PoolingPlugin | None = None
    """What ``task: plugin`` goes through."""

    @property
    def name(self) -> str:
        return self.served_names[0]

    @property
    def max_length(self) -> int:
        """Most tokens of one text, with all that is special. The engine must have been ready."""
        ready = self.client.ready
        own = self.config.max_length
        return own if ready is None else min(own, ready.max_model_len)

    @property
    def tasks(self) -> tuple[PoolingTask, ...]:
        return tasks_of(self.config)

    @property
    def main_task(self) -> PoolingTask:
        """What it was made for."""
        return "token_embed" if self.compares == "tokens" else self.tasks[0]

    @property
    def compares(self) -> Compares:
        config = self.config
        if config.score is not None:
            return "together" if config.score.pooling is not None and len(config.score.labels) == 1 else ""
        if config.vectors is not None and not config.vectors.skip_first:
            return "tokens"
        return "weights" if self.tasks[0] == "sparse" else "vectors"
