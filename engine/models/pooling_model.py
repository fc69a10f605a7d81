"""Pooling models: a backbone with poolers and heads, for vectors and scores."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import msgspec
import torch

from stentor.protocols.ipc.pooling import Pooling, PoolingTask

from ..layers.forward_batch import ForwardBatch, LayerCache
from ..layers.linear.layer_context import LayerContext
from ..layers.linear.task_adapters import stacked
from ..layers.linear.weights import WeightError, WeightMap
from ..layers.pooling import PostPooling, normalize, pool
from ..model_config.encoders.pooling import QUERY, PoolingConfig, SparseHead, TokenWeights, WholeSparseHead, tasks_of
from ..model_config.encoders.transformers_config import TransformersEncoder
from ..model_config.hf.text_names import text_name
from ..model_config.spec.encoder import EncoderConfig
from .decoder import Decoder
from .encoder import Encoder
from .encoder_names import canonical
from .pooling_heads import (
    LexicalWeights,
    MarkedVectorsLayer,
    ProjectedTokens,
    QueryWeights,
    Scorer,
    SpladeWeights,
    TokenVectorsLayer,
    WholeSpladeWeights,
    activated,
)
from .programs import Programs
from .transformers.encoder import TransformersBackbone, TransformersScorer

Tensors = Iterable[tuple[str, torch.Tensor]]

_UNUSED = (
    "position_ids",
    "inv_freq",
    "attention.self.distance_embedding.weight",
)
_OTHER_HEADS = (
    "pooler.",
    "cls.",
    "lm_head.",
    "classifier.",
    "pre_classifier.",
    "score.",
    "qa_outputs.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "head.",
    "decoder.",
    "discriminator_predictions.",
    "generator_predictions.",
    "generator_lm_head.",
)
"""Tensors of other heads, which are ignored."""


class PooledTensor(msgspec.Struct, frozen=True):
    """The result for one prompt."""

    values: torch.Tensor
    """float32 [rows, columns]"""
    ids: torch.Tensor | None = None
    """For ``sparse``: int64 [columns]"""


class PoolingModel:
    """The caller runs the backbone; :meth:`pool` makes the requested results from its hidden states."""

    def __init__(
        self,
        config: PoolingConfig,
        context: LayerContext,
        max_model_len: int,
        *,
        media_tokens: int = 0,
        media_layers: Sequence[int] = (),
    ) -> None:
        """``media_tokens``, ``media_layers``: as for :class:`.decoder.Decoder`."""
        self.config = config
        self._context = context
        self._backbone: Encoder | Decoder | TransformersBackbone
        match config.backbone:
            case EncoderConfig() as described:
                self._backbone = Encoder(described, context, max_model_len)
            case TransformersEncoder() as described:
                self._backbone = TransformersBackbone(described, context)
            case described:
                self._backbone = Decoder(
                    described, context, max_model_len, media_tokens=media_tokens, media_layers=media_layers
                )
        if context.adapters is not None:
            context.adapters.by_name.pop("lm_head", None)  # no tokens are sampled
        self._adapters = {name: number for number, name in enumerate(config.adapters)}
        self._projection: ProjectedTokens | None = None
        if config.projection is not None:
            self._projection = ProjectedTokens(config.projection, config.backbone.output_size, context)
        size = config.token_size
        after = config.modules.after
        self.after = PostPooling(after[:-1] if config.modules.normalizes else after, context)
        self.scorer: Scorer | TransformersScorer | None = None
        if config.score is not None and isinstance(self._backbone, TransformersBackbone):
            self.scorer = TransformersScorer(config.score, self._backbone)
        elif config.score is not None:
            self.scorer = Scorer(config.score, size, context)
        self.sparse: SpladeWeights | WholeSpladeWeights | LexicalWeights | None = None
        match config.sparse:
            case SparseHead() as head:
                self.sparse = SpladeWeights(head, size, config.vocab_size, context)
            case WholeSparseHead() as head:
                assert isinstance(self._backbone, TransformersBackbone)
                self.sparse = WholeSpladeWeights(head, self._backbone)
            case TokenWeights() as head:
                self.sparse = LexicalWeights(head, size, context)
        self._queries = QueryWeights(config.vocab_size, context) if config.modules.queries else None
        self.vectors: TokenVectorsLayer | None = None
        if config.vectors is not None:
            self.vectors = TokenVectorsLayer(config.vectors, size, context, config.backbone.adapters)
        self._marked = None if config.marked is None else MarkedVectorsLayer(config.marked, size, context)

    @property
    def context(self) -> LayerContext:
        """The context that it was made with."""
        return self._context

    @property
    def reader(self) -> Decoder | Encoder:
        """The text model of a model that takes media."""
        assert not isinstance(self._backbone, TransformersBackbone)
        return self._backbone

    @property
    def weights(self) -> WeightMap:
        """The backbone's weights."""
        return self._backbone.weights

    @property
    def total_bytes(self) -> int:
        """Bytes of all weights."""
        behind = [weights.total_bytes for _, weights in self.after.weights]
        parts = self._projection, self.scorer, self.vectors, self._marked, self._queries
        heads = [head.weights.total_bytes for head in parts if head is not None]
        if self.sparse is not None:
            heads.append(self.sparse.total_bytes)
        return self.weights.total_bytes + sum(behind) + sum(heads)

    @property
    def token_types(self) -> int:
        """Number of token types of the backbone."""
        return 0 if isinstance(self._backbone, Decoder) else self._backbone.config.token_types

    def adapter_numbers(self, adapters: Sequence[str]) -> list[int]:
        """The number of each text's adapter in :attr:`..model_config.encoders.pooling.PoolingConfig.adapters`; -1 for
        other names.

        Empty if the model has none.
        """
        if not self._adapters:
            return []
        assert self.config.backbone.adapters is not None
        default = self.config.backbone.adapters.default
        return [self._adapters.get(name or default, -1) for name in adapters]

    def programs(self, caches: Sequence[LayerCache]) -> Programs | None:
        """The backbone's recorded programs over these caches; None if it has none, or is no decoder."""
        return self._backbone.programs(caches) if isinstance(self._backbone, Decoder) else None

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden] of the backbone."""
        return self._backbone.forward(batch)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [rows, hidden] in the form that :meth:`pool` takes: normed, if the backbone is a decoder, and
        projected, if the model does so."""
        hidden = self._backbone.normed(hidden) if isinstance(self._backbone, Decoder) else hidden
        return hidden if self._projection is None else self._projection(hidden)

    @property
    def tasks(self) -> tuple[PoolingTask, ...]:
        """The supported tasks."""
        return tasks_of(self.config)

    def load(self, tensors: Tensors, files: Callable[[str], Tensors]) -> None:
        """Load all weights from the checkpoint's ``tensors``; ``files`` reads others by file or folder name.

        Raises :class:`..layers.linear.weights.WeightError`.
        """
        kept: dict[WeightMap, list[tuple[str, torch.Tensor]]] = {weights: [] for weights in self._heads()}
        shared: dict[str, torch.Tensor] = {}
        wanted = self._shared_name()
        tasks = self.config.backbone.adapters
        beside: Tensors = () if tasks is None else stacked(tasks, files)
        if self.config.backbone.text_part:  # adapters name what they change as the checkpoint does
            beside = ((text_name(name) or name, tensor) for name, tensor in beside)

        def backbone() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in self._named(chain(tensors, beside)):
                if name == wanted:
                    shared[name] = tensor
                owner = next((weights for weights in kept if weights.wants(name)), None)
                if owner is not None:
                    kept[owner].append((name, tensor))
                elif isinstance(self._backbone, TransformersBackbone) or not name.startswith(_OTHER_HEADS):
                    yield name, tensor

        if isinstance(self._backbone, TransformersBackbone):
            self._backbone.load(backbone())
        else:
            if isinstance(self._backbone, Decoder):
                self.weights.pass_over(*self._backbone.config.unused)
            self.weights.load(backbone(), ignore=_UNUSED)
        for weights, found in kept.items():
            weights.load(found)
        if wanted and wanted not in shared:
            raise WeightError(f"the checkpoint lacks {wanted}")
        if isinstance(self.sparse, SpladeWeights):
            self.sparse.take_words(shared[wanted])
        elif wanted and isinstance(self.scorer, Scorer):
            self.scorer.take_rows(shared[wanted])
        for module, weights in self.after.weights:
            weights.load(files(str(module.folder)))
        if isinstance(self.sparse, LexicalWeights):
            weights = self.sparse.weights
            weights.load((f"linear.{name}", tensor) for name, tensor in files(self.sparse.file))
        if self._queries is not None:
            self._queries.weights.load(files(self.config.modules.queries))
        if self.vectors is not None and self.vectors.head.file:
            stored = files(self.vectors.head.file)
            self.vectors.weights.load((f"linear.{name.rpartition('.')[2]}", tensor) for name, tensor in stored)

    def _heads(self) -> list[WeightMap]:
        """Weight maps of heads whose tensors are in the checkpoint itself."""
        found = [each.weights for each in (self._projection, self._marked) if each is not None]
        if self.scorer is not None and not self.scorer.head.tied_rows:
            found.append(self.scorer.weights)
        if isinstance(self.sparse, SpladeWeights):
            found.append(self.sparse.weights)
        if self.vectors is not None and not self.vectors.head.file:
            found.append(self.vectors.weights)
        return found

    def _shared_name(self) -> str:
        """The backbone's tensor that a head shares; "" if none does."""
        if isinstance(self.sparse, SpladeWeights):
            return "embeddings.word.weight"
        if self.scorer is not None and self.scorer.head.tied_rows:
            return f"{self.scorer.head.out}.weight"
        return ""

    def _named(self, tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
        """The backbone's tensors under its own names, stored with or without a head."""
        if isinstance(self.config.backbone, EncoderConfig):
            yield from canonical(self.config.backbone.family, tensors)
        elif isinstance(self._backbone, Decoder):
            yield from self._backbone.own(tensors)
        else:
            yield from tensors

    def pool(
        self, hidden: torch.Tensor, tokens: torch.Tensor, cu_seqlens: torch.Tensor, requests: Sequence[Pooling]
    ) -> list[PooledTensor]:
        """Make the requested result of each text.

        Args:
            hidden: [tokens, size]. A text may be its last token alone, if its request needs no others.
            tokens: int64 [tokens].
            cu_seqlens: int64 [texts + 1].
            requests: one a text.
        """
        made: list[PooledTensor | None] = [None] * len(requests)
        embedding = [number for number, request in enumerate(requests) if request.task == "embed"]
        if embedding:
            for number, vector in zip(embedding, self._embed(hidden, cu_seqlens, requests, embedding), strict=True):
                made[number] = PooledTensor(vector)
        scored, head = None, self.config.score
        marked = None if head is None or head.pooling is not None else head.scored_token
        if marked is None and any("classify" in request.task for request in requests):
            scored = self._scored(hidden, tokens, cu_seqlens)
        bounds = cu_seqlens.tolist()
        for number, request in enumerate(requests):
            rows = slice(bounds[number] + request.skip, bounds[number + 1])
            match request.task:
                case "embed":
                    continue
                case "token_embed":
                    made[number] = PooledTensor(self._token_vectors(hidden[rows], tokens[rows], request))
                case "sparse":
                    assert self.sparse is not None
                    if request.adapter == QUERY and self._queries is not None:
                        ids, weights = self._queries(tokens[rows])
                    else:
                        ids, weights = self.sparse(hidden[rows], tokens[rows])
                    made[number] = PooledTensor(weights.unsqueeze(0), ids)
                case "classify" | "token_classify":
                    assert self.scorer is not None
                    if scored is None:  # of these tokens alone
                        own = tokens[rows] == marked
                        logits = self._scored(hidden[rows][own], tokens[rows][own], cu_seqlens)
                    else:
                        each = self.scorer.head.pooling is None
                        logits = scored[rows] if each else scored[number : number + 1]
                    made[number] = PooledTensor(activated(self.scorer.head, logits) if request.activate else logits)
        return [each for each in made if each is not None]

    def _embed(
        self, hidden: torch.Tensor, cu_seqlens: torch.Tensor, requests: Sequence[Pooling], wanted: Sequence[int]
    ) -> Iterator[torch.Tensor]:
        """The vectors [1, dimensions] of the texts ``wanted``, in order; of a text in parts [parts, dimensions]."""
        if len(wanted) == len(requests) and not any(request.skip or request.parts for request in requests):
            kept, bounds = hidden, cu_seqlens
        else:
            at = cu_seqlens.tolist()
            parts = [part for text in wanted for part in _parts(requests[text], at[text], at[text + 1])]
            rows = [torch.arange(*part, device=hidden.device) for part in parts]
            kept = hidden[torch.cat(rows)]
            lengths = torch.tensor([0, *map(len, rows)], device=cu_seqlens.device)
            bounds = lengths.cumsum(0)
        vectors = self.after(pool(kept, bounds, self.config.modules.pooling))
        counts = [len(requests[text].parts) or 1 for text in wanted]
        for vector, number in zip(vectors.split(counts), wanted, strict=True):
            request = requests[number]
            if request.dimensions and request.dimensions < vector.shape[1]:
                vector = vector[:, : request.dimensions]
            scaled = self.config.modules.normalizes if request.normalize is None else request.normalize
            yield normalize(vector) if scaled else vector

    def _token_vectors(self, hidden: torch.Tensor, tokens: torch.Tensor, request: Pooling) -> torch.Tensor:
        if self._marked is not None:
            return self._marked(hidden, tokens)
        if self.vectors is None:
            return normalize(hidden.float()) if request.normalize else hidden.float()
        made = self.vectors(hidden, *self.adapter_numbers([request.adapter]))
        if request.dimensions and request.dimensions < made.shape[1]:
            made = normalize(made[:, : request.dimensions])
        return made[1:] if self.vectors.head.skip_first else made

    def _scored(self, hidden: torch.Tensor, tokens: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        if isinstance(self.scorer, TransformersScorer):
            return self.scorer(hidden, tokens, cu_seqlens)
        assert self.scorer is not None
        return self.scorer(hidden, cu_seqlens)


def _parts(request: Pooling, start: int, end: int) -> list[tuple[int, int]]:
    """The half-open ranges that have a vector each, of a text at ``start`` to ``end``."""
    ends = [start + part for part in request.parts] or [end]
    # of a text that is read by its last token alone, that one is left
    return list(zip([min(start + request.skip, end - 1), *ends], ends, strict=False))
