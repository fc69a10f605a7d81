"""A pooling model of the server: it makes vectors or scores."""

from typing import Literal

import msgspec

from stentor.engine.model_config.encoders.pooling import PoolingConfig, tasks_of
from stentor.engine.model_config.spec.encoder import EncoderConfig
from stentor.protocols.ipc.pooling import PoolingTask

from ..config.model_facts import ModelFacts
from ..media.chat_media import ChatMedia
from ..media.collect import TEXT_ONLY, Accepted
from ..text.output.generation import ModelEngine
from ..text.pool import TokenizerPool
from .affix_tokens import AffixTokens, PairAffixTokens
from .metrics import EmbeddingMetrics
from .plugin import PoolingPlugin

Compares = Literal["together", "list", "vectors", "tokens", "weights", ""]
"""How two texts are scored: read together by a cross-encoder, read in one prompt with all other documents, by the
cosine of their vectors, by the vectors of their tokens (late interaction), by the product of their weights over the
vocabulary, or not at all."""
PairForm = Literal["pair", "qwen3", "qwen3_vl", "jina_vl", "bge", "nemotron", "nemotron_vl", "template"]
"""How a query and a document become one prompt: as the tokenizer joins two texts, by the words of Qwen3-Reranker, of
Qwen3-VL-Reranker (which may see both), of BGE's Gemma or of NVIDIA's Llama (which may see a picture), or by the model's
chat template, to which they are messages of the roles ``query`` and ``document``."""


class LateInteraction(msgspec.Struct, frozen=True):
    """How a late-interaction model marks queries and documents."""

    query: int | None = None
    """A token behind the first; None: none."""
    document: int | None = None
    query_length: int = 0
    """In tokens, special ones included; queries are truncated to it. 0: the model's limit."""
    document_length: int = 0
    fill: int | None = None
    """Padding token of queries up to :attr:`query_length`, for models that attend to padding."""
    skipped: frozenset[int] = frozenset()
    """Tokens of documents that count for nothing: punctuation."""
    words: tuple[str, str] = ("", "")
    """Before the text of a query and behind it (ColPali)."""
    around_document: tuple[str, str] = ("", "")
    """The same for the text of a document (ColQwen3)."""
    affixed: bool = False
    """Whether these are placed between the tokenizer's special tokens (ColModernVBERT)."""
    picture: str = ""
    """Text around a document's picture, with its placeholder; "": pictures are not supported."""
    one_vector: bool = False
    """Whether the model also makes one vector of a prompt: of a picture's tokens and the marks beside them alone (Jina
    v4)."""


class EmbeddingModel(msgspec.Struct, frozen=True):
    """Shared by all requests; nothing of it changes."""

    served_names: tuple[str, ...]
    """Never empty."""
    client: ModelEngine
    pool: TokenizerPool
    config: PoolingConfig
    ends: AffixTokens
    pair_ends: PairAffixTokens
    pair_form: PairForm = "pair"
    markers: LateInteraction = msgspec.field(default_factory=LateInteraction)
    metrics: EmbeddingMetrics | None = None
    plugin: PoolingPlugin | None = None
    """Handler of ``task: plugin``."""
    media: ChatMedia | None = None
    """Processor of conversations' media."""
    accepted: Accepted = TEXT_ONLY
    """The media that it and the operator take."""
    facts: ModelFacts = msgspec.field(default_factory=ModelFacts)

    @property
    def name(self) -> str:
        return self.served_names[0]

    @property
    def media_alone(self) -> bool:
        """Whether images have a tower of their own that makes vectors."""
        return self.media is not None and self.media.alone

    @property
    def lone_pictures(self) -> bool:
        """Whether a picture is a whole prompt, without text."""
        return self.media_alone or bool(self.markers.picture)

    @property
    def sees(self) -> bool:
        """Whether it takes media of any kind that the operator allows."""
        return bool(self.accepted.counts)

    @property
    def pads(self) -> bool:
        """Whether texts are padded to the length that all had in training (SigLIP)."""
        return isinstance(self.config.backbone, EncoderConfig) and self.config.backbone.filled

    def filled(self, ids: list[int]) -> list[int]:
        """The tokens of a text, padded for models trained so."""
        if not self.pads:
            return ids
        pad = self.pool.tokenizer.pad_token_id
        assert pad is not None, "a model that fills texts up is not opened without"
        return ids + [pad] * (self.max_length - len(ids))

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
        """The model's own task."""
        return "token_embed" if self.compares == "tokens" else self.tasks[0]

    @property
    def per_token(self) -> bool:
        """Whether all its vectors are of tokens."""
        return self.compares == "tokens" and not self.markers.one_vector

    @property
    def compares(self) -> Compares:
        config = self.config
        if config.marked is not None:
            return "list"
        if config.score is not None:
            return "together" if config.score.pooling is not None and len(config.score.labels) == 1 else ""
        if config.vectors is not None and not config.vectors.skip_first:
            return "tokens"
        return "weights" if self.tasks[0] == "sparse" else "vectors"
