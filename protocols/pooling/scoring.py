"""``/score`` and ``/rerank`` in vLLM's shape, with what Cohere's and Jina's clients add to the latter."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common import limits
from ..common.errors import BadRequest, missing, wrong
from ..common.limits import Limits
from ..openai.sampling import not_served
from .common import PoolingFields, TextObject, TextUsage, check_texts, text_of

Texts = str | TextObject | Annotated[list[str | TextObject], Meta(min_length=1)]
TokenBound = Annotated[int, Meta(ge=0, le=limits.INT32_MAX)]
MAX_INSTRUCTION: Final = 1 << 14
"""Characters."""

_QUERIES: Final = ("queries", "data_1", "text_1")
_DOCUMENTS: Final = ("documents", "items", "data_2", "text_2")


class ScoringFields(PoolingFields, kw_only=True):
    max_tokens_per_query: TokenBound = 0
    """What is longer is cut; 0: only together with the other text."""
    max_tokens_per_doc: TokenBound | None = None
    instruction: Annotated[str, Meta(max_length=MAX_INSTRUCTION)] | None = None
    """What makes a document fit, for models that are told so."""
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def given_instruction(self) -> str | None:
        """The instruction, by either way of giving it. Raises BadRequest."""
        given = (self.chat_template_kwargs or {}).get("instruction", self.instruction)
        if given is not None and not isinstance(given, str):
            raise BadRequest("`chat_template_kwargs.instruction` must be a string.", "chat_template_kwargs")
        return given


class ScoreRequest(ScoringFields, kw_only=True):
    """One text on each side, one against many, or as many as there are on the other side."""

    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None

    def sides(self, limits: Limits) -> tuple[list[str], list[str], tuple[str, str]]:
        """The texts of each, and the fields that have them. Raises BadRequest."""
        self.check_reading()
        first, one = self._side(_QUERIES, limits)
        second, other = self._side(_DOCUMENTS, limits)
        if len(first) not in (1, len(second)):
            raise wrong(
                one,
                f"has {len(first)} texts and `{other}` {len(second)}: expected are one against many, or as many on "
                "both sides",
            )
        return first, second, (one, other)

    def _side(self, names: tuple[str, ...], limits: Limits) -> tuple[list[str], str]:
        given = [name for name in names if getattr(self, name) is not None]
        if not given:
            raise missing(names[0])
        if len(given) > 1:
            raise BadRequest(f"`{given[0]}` and `{given[1]}` are names of the same; give one.", given[1])
        return _texts(getattr(self, given[0]), given[0], limits), given[0]


class RerankRequest(ScoringFields, kw_only=True):
    query: str | TextObject
    documents: Texts
    top_n: Annotated[int, Meta(ge=0, le=limits.INT32_MAX)] | None = None
    """0 and None: all."""
    return_documents: bool = True
    max_chunks_per_doc: Any = None
    """Accepted and without effect, as of other versions of the protocol."""
    relevant_spans: dict[str, Any] | None = None
    """Cohere's, of Rerank 5."""

    def sides(self, limits: Limits) -> tuple[str, list[str]]:
        """Raises BadRequest."""
        self.check_reading()
        if (self.relevant_spans or {}).get("mode", "disabled") != "disabled":
            raise not_served("relevant_spans")
        query = text_of(self.query, "query")
        check_texts([query], limits, "query")
        return query, _texts(self.documents, "documents", limits)


def _texts(given: str | TextObject | list[str | TextObject], field: str, limits: Limits) -> list[str]:
    if isinstance(given, list):
        texts = [text_of(item, f"{field}[{index}]") for index, item in enumerate(given)]
    else:
        texts = [text_of(given, field)]
    check_texts(texts, limits, field)
    return texts


# ---- responses


class Score(msgspec.Struct, frozen=True):
    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreResponse(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    data: list[Score]
    usage: TextUsage
    object: Literal["list"] = "list"


class Document(msgspec.Struct, frozen=True):
    text: str


class Ranked(msgspec.Struct, frozen=True):
    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankResponse(msgspec.Struct, frozen=True):
    id: str
    model: str
    usage: TextUsage
    results: list[Ranked]
    """The most relevant first."""


score_decoder: Final = msgspec.json.Decoder(ScoreRequest)
rerank_decoder: Final = msgspec.json.Decoder(RerankRequest)
