"""Heads on hidden states: scores, sparse weights, token vectors. Computed in float32."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import torch

from ..layers.linear.layer_context import LayerContext
from ..layers.linear.weights import WeightError, WeightMap, check_shape
from ..layers.pooling import ACTIVATE, normalize, pool
from ..model_config.encoders.pooling import (
    MarkedVectors,
    ScoreActivation,
    ScoreHead,
    SparseHead,
    TokenProjection,
    TokenVectors,
    TokenWeights,
    WholeSparseHead,
)
from ..model_config.encoders.sentence import SpladeForm
from ..model_config.spec.model import TaskAdapters
from .transformers.encoder import TransformersBackbone

_TOKENS: Final = 128
"""Tokens whose logits are held at once: 128 MB of float32 for a vocabulary of 250k."""

_SCORE: Final[Mapping[ScoreActivation, Callable[[torch.Tensor], torch.Tensor]]] = {
    "identity": lambda logits: logits,
    "sigmoid": torch.sigmoid,
    "softmax": lambda logits: logits.softmax(-1),
}


def activated(head: ScoreHead, logits: torch.Tensor) -> torch.Tensor:
    """Scores with the activation that the model was published with."""
    return _SCORE[head.activate](logits)


class _Layer:
    """x Wᵀ + b."""

    def __init__(
        self, weights: WeightMap, name: str, inputs: int, outputs: int, context: LayerContext, *, bias: bool
    ) -> None:
        self.weight = context.empty(outputs, inputs, dtype=torch.float32)
        self.bias = context.empty(outputs, dtype=torch.float32)
        weights.add(f"{name}.weight", self.weight)
        if bias:
            weights.add(f"{name}.bias", self.bias)
        elif not context.filled:
            self.bias.zero_()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


class _Norm:
    def __init__(
        self, weights: WeightMap, name: str, size: int, eps: float, context: LayerContext, *, bias: bool = True
    ) -> None:
        self._weight = context.empty(size, dtype=torch.float32)
        self._bias = context.empty(size, dtype=torch.float32)
        self._eps = eps
        weights.add(f"{name}.weight", self._weight)
        if bias:
            weights.add(f"{name}.bias", self._bias)
        elif not context.filled:
            self._bias.zero_()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)


class Scorer:
    """Scores by class, of each text or each token."""

    def __init__(self, head: ScoreHead, size: int, context: LayerContext) -> None:
        self.head = head
        self.weights = WeightMap()
        self._dense = (
            _Layer(self.weights, head.dense, size, size, context, bias=head.dense_bias) if head.dense else None
        )
        self._norm = (
            _Norm(self.weights, head.norm, size, head.norm_eps, context, bias=head.norm_bias) if head.norm else None
        )
        self._out: _Layer | torch.Tensor
        if head.tied_rows:
            self._out = context.empty(1, size, dtype=torch.float32)
        else:
            self._out = _Layer(self.weights, head.out, size, len(head.labels), context, bias=head.out_bias)

    def take_rows(self, embedding: torch.Tensor) -> None:
        """Take the output embedding, as stored, if the head is the difference of two of its rows.

        Raises :class:`..layers.linear.weights.WeightError` if the rows do not exist.
        """
        assert isinstance(self._out, torch.Tensor)
        if max(self.head.tied_rows) >= len(embedding):
            raise WeightError(
                f"the scores are of the tokens {' and '.join(map(str, self.head.tied_rows))}, expected such as are "
                f"below {len(embedding)}"
            )
        rows = embedding[list(self.head.tied_rows)].float()
        self._out.copy_(rows[:1] if len(rows) == 1 else rows[:1] - rows[1:])

    def __call__(self, hidden: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        """hidden [tokens, size], cu_seqlens int64 [texts + 1] → logits float32 [texts or tokens, labels]."""
        head = self.head
        pooling = () if head.pooling is None else (head.pooling,)
        x = pool(hidden, cu_seqlens, pooling) if pooling and not head.late else hidden.float()
        if self._dense is not None:
            x = ACTIVATE[head.activation](self._dense(x))
        if self._norm is not None:
            x = self._norm(x)
        x = (x @ self._out.T if isinstance(self._out, torch.Tensor) else self._out(x)) * head.scale + head.shift
        return pool(x, cu_seqlens, pooling) if head.late else x


class SpladeWeights:
    """SPLADE: weights over the vocabulary."""

    def __init__(self, head: SparseHead, size: int, vocabulary: int, context: LayerContext) -> None:
        self.weights = WeightMap()
        inner = head.size or size
        self._dense = _Layer(self.weights, head.dense, size, inner, context, bias=head.dense_bias)
        self._norm = _Norm(self.weights, head.norm, inner, head.norm_eps, context, bias=head.norm_bias)
        self._bias = context.empty(vocabulary, dtype=torch.float32)
        self.weights.add(head.bias, self._bias)
        self._activation, self._form = head.activation, head.form
        self._words = context.empty(vocabulary, inner, dtype=torch.float32)

    @property
    def total_bytes(self) -> int:
        return self.weights.total_bytes + self._words.nbytes

    def take_words(self, words: torch.Tensor) -> None:
        """Take the word embeddings [vocabulary, size], as stored, as the output layer.

        Raises :class:`..layers.linear.weights.WeightError` for another shape.
        """
        check_shape("the word embedding", words, tuple(self._words.shape))
        self._words.copy_(words)

    def __call__(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden [tokens, size] of one text → (ids int64 [n], weights float32 [n]) of the weights above 0."""
        x = self._norm(ACTIVATE[self._activation](self._dense(hidden.float())))
        return weighed((piece @ self._words.T + self._bias for piece in x.split(_TOKENS)), self._form)


class WholeSpladeWeights:
    """SPLADE by transformers' masked-language head."""

    total_bytes = 0
    """The backbone has its tensors."""

    def __init__(self, head: WholeSparseHead, backbone: TransformersBackbone) -> None:
        self._form, self._backbone = head.form, backbone

    def __call__(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`SpladeWeights.__call__`."""
        pieces = zip(hidden.split(_TOKENS), tokens.split(_TOKENS), strict=True)
        return weighed((self._backbone.logits(*piece) for piece in pieces), self._form)


def weighed(logits: Iterable[torch.Tensor], form: SpladeForm) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits float32 [tokens, vocabulary] of one text, in pieces → its (ids int64 [n], weights float32 [n]) above 0."""
    if form.sums:
        total = torch.stack([_logarithm(piece.relu(), form).sum(0) for piece in logits]).sum(0)
    else:
        total = _logarithm(torch.stack([piece.amax(0) for piece in logits]).amax(0).relu(), form)
    ids = total.nonzero()[:, 0]
    return ids, total[ids]


def _logarithm(weights: torch.Tensor, form: SpladeForm) -> torch.Tensor:
    return weights.log1p().log1p() if form.twice else weights.log1p()


class QueryWeights:
    """The stored weights of a query's own tokens."""

    def __init__(self, vocabulary: int, context: LayerContext) -> None:
        self.weights = WeightMap()
        self._weight = context.empty(vocabulary, dtype=torch.float32)
        self.weights.add("weight", self._weight)

    def __call__(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [tokens] of one text → (ids int64 [n], weights float32 [n]) of the weights that are not 0."""
        ids = tokens.unique()
        ids = ids[self._weight[ids] != 0]
        return ids, self._weight[ids]


class LexicalWeights:
    """Weights of a text's own tokens; the largest for repeated ones."""

    def __init__(self, head: TokenWeights, size: int, context: LayerContext) -> None:
        self.weights = WeightMap()
        self.file = head.file
        self._layer = _Layer(self.weights, "linear", size, 1, context, bias=True)

    @property
    def total_bytes(self) -> int:
        return self.weights.total_bytes

    def __call__(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden [tokens, size] and tokens int64 [tokens] of one text → (ids int64 [n], weights float32 [n]) of the
        weights above 0, special tokens included."""
        given = torch.relu(self._layer(hidden.float()))[:, 0]
        ids, places = tokens.unique(return_inverse=True)
        best = torch.zeros(len(ids), device=given.device).scatter_reduce_(0, places, given, "amax")
        return ids[best > 0], best[best > 0]


class ProjectedTokens:
    """The hidden states of all tokens in another space."""

    def __init__(self, projection: TokenProjection, size: int, context: LayerContext) -> None:
        self.weights = WeightMap()
        self._layer = _Layer(self.weights, projection.name, size, projection.outputs, context, bias=False)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, size] → float32 [tokens, outputs]"""
        return self._layer(hidden.float())


class TokenVectorsLayer:
    """A vector of length 1 for every token."""

    def __init__(
        self, head: TokenVectors, size: int, context: LayerContext, adapters: TaskAdapters | None = None
    ) -> None:
        """``adapters``: of tasks, whose files also change the layer (Jina v4)."""
        self.head = head
        self.weights = WeightMap()
        self._layer = None
        self._down: torch.Tensor | None = None
        if not head.layer:
            return
        outputs = head.stored or head.outputs
        self._layer = _Layer(self.weights, "linear", size, outputs, context, bias=head.bias)
        if adapters is not None and adapters.files:
            tasks, self._scale = len(adapters.names), adapters.scale
            self._down = context.empty(tasks, adapters.rank, size, dtype=torch.float32)
            self._up = context.empty(tasks, outputs, adapters.rank, dtype=torch.float32)
            self.weights.add("linear.lora_A", self._down)
            self.weights.add("linear.lora_B", self._up)

    def __call__(self, hidden: torch.Tensor, task: int = -1) -> torch.Tensor:
        """[tokens, size] → float32 [tokens, outputs]. ``task``: number of the adapter; -1: none."""
        hidden = hidden.float()
        if self._layer is None:
            return normalize(hidden)
        made = self._layer(hidden)
        if task >= 0 and self._down is not None:
            made += self._scale * (hidden @ self._down[task].T @ self._up[task].T)
        return normalize(made[:, : self.head.outputs])


class MarkedVectorsLayer:
    """Vectors of the tokens behind documents, then of the one behind the query."""

    def __init__(self, head: MarkedVectors, size: int, context: LayerContext) -> None:
        self.head = head
        self.weights = WeightMap()
        self._inner = _Layer(self.weights, "projector.0", size, head.inner, context, bias=False)
        self._outer = _Layer(self.weights, "projector.2", head.inner, head.outputs, context, bias=False)

    def __call__(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """hidden [tokens, size] and tokens int64 [tokens] of one prompt → float32 [marked tokens, outputs]"""
        places = torch.cat([(tokens == mark).nonzero()[:, 0] for mark in (self.head.document, self.head.query)])
        return self._outer(torch.relu(self._inner(hidden[places].float())))
