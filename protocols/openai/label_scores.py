"""Scores by the probabilities of next tokens: vLLM's ``/generative_scoring``, and SGLang's ``/v1/score``."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.errors import wrong
from ..ipc.sampling import MAX_LOGPROB_TOKEN_IDS
from .sampling import Name, TokenId

Ids = list[TokenId]
Labels = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)]


class LabelFields(msgspec.Struct, kw_only=True):
    """A query with each item behind it is a prompt, whose next token is one of the labels."""

    query: str | Ids
    items: str | Annotated[list[str | Ids], Meta(min_length=1)]
    label_token_ids: Labels
    model: Name | None = None
    item_first: bool = False
    """Whether the query stands behind the item."""
    cache_salt: Annotated[str, Meta(min_length=1, max_length=limits.MAX_NAME_LENGTH)] | None = None
    priority: limits.Priority = 0

    @property
    def each_item(self) -> list[str | Ids]:
        return [self.items] if isinstance(self.items, str) else self.items

    def check(self) -> None:
        """Raises BadRequest."""
        if not self.query and not all(self.each_item):
            raise wrong("items", "must not be empty where `query` is: there is nothing to predict from")


class GenerativeScoringRequest(LabelFields, kw_only=True):
    """vLLM's."""

    apply_softmax: bool = True
    """Whether probabilities are those among the labels; otherwise among all tokens."""
    add_special_tokens: bool = True
    """Whether a query that is a text gets the tokenizer's first tokens."""
    request_id: Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)] | None = None


class LabelScoreRequest(LabelFields, kw_only=True):
    """SGLang's."""

    apply_softmax: bool = False


class LabelUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    """One of each item."""


class LabelScore(msgspec.Struct, frozen=True):
    index: int
    score: float
    """The probability of the first label."""
    object: Literal["score"] = "score"


class GenerativeScoringResponse(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    data: list[LabelScore]
    usage: LabelUsage
    object: Literal["list"] = "list"


class LabelScoreResponse(msgspec.Struct, tag="scoring", tag_field="object", frozen=True):
    scores: list[list[float]]
    """Of each item, the probabilities of all labels."""
    model: str
    usage: LabelUsage


class ScoreKind(msgspec.Struct):
    """Tells SGLang's requests to ``/v1/score`` from those that score pairs."""

    label_token_ids: Any = None


generative_scoring_decoder = msgspec.json.Decoder(GenerativeScoringRequest)
label_score_decoder = msgspec.json.Decoder(LabelScoreRequest)
score_kind_decoder = msgspec.json.Decoder(ScoreKind)
