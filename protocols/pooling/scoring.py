"""``/score`` and ``/rerank`` in vLLM's shape, with fields of Cohere's and Jina's clients."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common import limits
from ..common.errors import BadRequest, missing, wrong
from ..common.limits import Limits
from ..openai.media_parts import FIELD
from ..openai.sampling import not_served
from .common import PoolingFields, TextUsage
from .contents import Content, ContentObject, check_contents, content_of, plain_text

Contents = str | ContentObject | Annotated[list[str | ContentObject], Meta(min_length=1)]
TokenBound = Annotated[int, Meta(ge=0, le=limits.INT32_MAX)]
MAX_INSTRUCTION: Final = 1 << 14
"""Characters."""

_QUERIES: Final = ("queries", "data_1", "text_1")
_DOCUMENTS: Final = ("documents", "items", "data_2", "text_2")


class ScoringFields(PoolingFields, kw_only=True):
    max_tokens_per_query: TokenBound = 0
    """Longer texts are truncated; 0: only the pair is. Beside pictures, only text counts."""
    max_tokens_per_doc: TokenBound | None = None
    instruction: Annotated[str, Meta(max_length=MAX_INSTRUCTION)] | None = None
    """Relevance criterion, for models that take instructions."""
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def given_instruction(self) -> str | None:
        """The instruction, by either way of giving it. Raises BadRequest."""
        given = (self.chat_template_kwargs or {}).get("instruction", self.instruction)
        if given is not None and not isinstance(given, str):
            raise BadRequest("`chat_template_kwargs.instruction` must be a string.", "chat_template_kwargs")
        return given

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments of the chat template besides the instruction."""
        return {name: value for name, value in (self.chat_template_kwargs or {}).items() if name != "instruction"}


class ScoreRequest(ScoringFields, kw_only=True):
    """One text or picture on each side, one against many, or equal numbers on both sides."""

    queries: Contents | None = None
    documents: Contents | None = None
    items: Contents | None = None
    data_1: Contents | None = None
    data_2: Contents | None = None
    text_1: Contents | None = None
    text_2: Contents | None = None
    label_token_ids: Any = None
    """Makes it a request to score items by next tokens (:mod:`..openai.label_scores`)."""

    def sides(self, limits: Limits) -> tuple[list[Content], list[Content], tuple[str, str]]:
        """The inputs of each side, and their fields. Raises BadRequest."""
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

    def _side(self, names: tuple[str, ...], limits: Limits) -> tuple[list[Content], str]:
        given = [name for name in names if getattr(self, name) is not None]
        if not given:
            raise missing(names[0])
        if len(given) > 1:
            raise BadRequest(f"`{given[0]}` and `{given[1]}` are names of the same; give one.", given[1])
        return _contents(getattr(self, given[0]), given[0], limits), given[0]


class RerankRequest(ScoringFields, kw_only=True):
    query: str | ContentObject
    documents: Contents | None = None
    texts: Annotated[list[str], Meta(min_length=1)] | None = None
    """Text Embeddings Inference's name for documents; the next three fields are its own too."""
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool | None = None
    top_n: Annotated[int, Meta(ge=0, le=limits.INT32_MAX)] | None = None
    """0 and None: all."""
    return_documents: bool = True
    max_chunks_per_doc: Any = None
    """Accepted and without effect, as of other versions of the protocol."""
    relevant_spans: dict[str, Any] | None = None
    """Cohere's, of Rerank 5."""

    def sides(self, limits: Limits) -> tuple[Content, list[Content]]:
        """Raises BadRequest."""
        if self.truncate and self.truncate_prompt_tokens is None:
            self.truncate_prompt_tokens = -1
        if self.raw_scores and self.use_activation is None:
            self.use_activation = False
        self.check_reading()
        if (self.relevant_spans or {}).get("mode", "disabled") != "disabled":
            raise not_served("relevant_spans")
        query = content_of(self.query, "query")
        check_contents([query], limits, "query")
        if self.texts is not None:
            if self.documents is not None:
                raise BadRequest("`documents` and `texts` are names of the same; give one.", "texts")
            return query, _contents(list(self.texts), "texts", limits)
        if self.documents is None:
            raise missing("documents")
        return query, _contents(self.documents, "documents", limits)


def _contents(given: str | ContentObject | list[str | ContentObject], field: str, limits: Limits) -> list[Content]:
    if isinstance(given, list):
        contents = [content_of(item, f"{field}[{index}]") for index, item in enumerate(given)]
    else:
        contents = [content_of(given, field)]
    check_contents(contents, limits, field)
    return contents


# ---- responses


class Score(msgspec.Struct, frozen=True):
    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreResponse(msgspec.Struct, tag="list", tag_field="object", frozen=True):
    id: str
    created: int
    model: str
    data: list[Score]
    usage: TextUsage


class Document(msgspec.Struct, frozen=True):
    """The document as it came: a text, or vLLM's parts if it has more."""

    text: str | UnsetType = UNSET
    multi_modal: list[dict[str, Any]] | UnsetType = UNSET

    @classmethod
    def of(cls, content: Content) -> "Document":
        text = plain_text(content)
        if text is not None or isinstance(content, str):
            return cls(text=text or "")
        return cls(multi_modal=[{key: value for key, value in part.items() if key != FIELD} for part in content])


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


class RankedText(msgspec.Struct, frozen=True):
    """In the shape of Text Embeddings Inference, whose answer is a list of these."""

    index: int
    score: float
    text: str | UnsetType = UNSET


score_decoder: Final = msgspec.json.Decoder(ScoreRequest)
rerank_decoder: Final = msgspec.json.Decoder(RerankRequest)
