"""``/v1/embeddings``: the request with its checks, with what vLLM and Jina add to it, and the response."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.errors import refused, wrong
from ..common.limits import Limits
from ..openai.sampling import Name, not_served, refuse
from .common import TextUsage
from .formats import NumberFields

JinaType = Literal["float", "base64", "binary", "ubinary"]
REFUSED: Final = ("late_chunking_params", "return_multivector")


class EmbeddingRequest(NumberFields, kw_only=True):
    dimensions: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)] | None = None
    """Vectors are cut to this size, for models trained for it."""
    normalize: bool | None = None
    """Whether vectors have length 1."""
    task: Name | None = None
    """Purpose of the vectors in Jina's field; the next is Cohere's, the last that of sentence-transformers."""
    input_type: Name | None = None
    prompt_name: Name | None = None

    normalized: bool | None = None
    embedding_type: JinaType | list[JinaType] | None = None
    """Jina's name for ``encoding_format``."""
    late_chunking: bool | None = None
    """Jina's: the texts are parts of one, which is read as a whole; their vectors are made of its tokens."""
    late_chunking_params: Any = None
    return_multivector: bool | None = None
    images: Any = None

    @property
    def purpose(self) -> tuple[str, str] | None:
        """Purpose of the vectors in the client's words, and its field."""
        for field in ("prompt_name", "input_type", "task"):
            if (name := getattr(self, field)) is not None:
                return name, field
        return None

    @property
    def normalizes(self) -> bool | None:
        for given in (self.normalize, self.normalized, self.use_activation):
            if given is not None:
                return given
        return None

    def check(self, limits: Limits) -> None:
        refuse(self, REFUSED)
        if self.images is not None:
            raise refused(
                "images", "is not read; send each picture as an object with `image` in `input`", "unsupported"
            )
        super().check(limits)
        if self.embedding_type is not None:
            wanted = [self.embedding_type] if isinstance(self.embedding_type, str) else self.embedding_type
            if len(wanted) != 1 or wanted[0] not in ("float", "base64"):
                raise not_served("embedding_type", "`embedding_type` other than `float` or `base64`")
            self.encoding_format = wanted[0]
        if self.late_chunking and self.conversations:
            raise wrong("late_chunking", "needs texts in `input`; conversations are not parts of one text")
        if self.late_chunking and self.truncate_prompt_tokens is not None:
            field = "truncate" if self.truncate else "truncate_prompt_tokens"
            raise wrong(field, "would cut off whole texts with `late_chunking`; leave it out, and send fewer texts")
        if self.purpose is not None and self.conversations:
            field = self.purpose[1]
            raise wrong(field, "puts a prompt before texts, and messages bring their own")


# ---- responses


class Embedding(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float | list[float]] | str
    """A vector; of a late-interaction model one for each token, as in vLLM."""
    object: Literal["embedding"] = "embedding"


class EmbeddingResponse(msgspec.Struct, frozen=True):
    id: str
    """vLLM's, as the next."""
    created: int
    data: list[Embedding]
    model: str
    usage: TextUsage
    object: Literal["list"] = "list"


decoder: Final = msgspec.json.Decoder(EmbeddingRequest)
