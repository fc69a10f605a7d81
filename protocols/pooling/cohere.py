"""``/v2/embed`` of Cohere's API."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common import limits
from ..common.errors import wrong
from ..common.limits import Limits
from ..openai.sampling import Name, not_served
from .common import check_texts

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class EmbedInput(msgspec.Struct):
    content: Annotated[list[ContentPart], Meta(min_length=1)]


class EmbedRequest(msgspec.Struct, kw_only=True):
    model: Name | None = None
    input_type: Name | None = None
    texts: Annotated[list[str], Meta(min_length=1)] | None = None
    inputs: Annotated[list[EmbedInput], Meta(min_length=1)] | None = None
    images: Any = None
    output_dimension: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)] | None = None
    embedding_types: Annotated[list[EmbeddingType], Meta(min_length=1)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    """Which end of a text that is too long is cut off."""
    max_tokens: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)] | None = None
    priority: Annotated[int, Meta(ge=limits.INT32_MIN, le=limits.INT32_MAX)] = 0

    def all_texts(self, limits: Limits) -> tuple[list[str], str]:
        """The texts, and the field that has them. Raises BadRequest."""
        if self.images is not None or self.input_type == "image":
            raise not_served("images" if self.images is not None else "input_type", "An embedding of pictures")
        if (self.texts is None) == (self.inputs is None):
            raise wrong(
                "texts",
                "is required, or `inputs` in its place",
                "missing_required_parameter" if self.texts is None else None,
            )
        if self.texts is not None:
            check_texts(self.texts, limits, "texts")
            return self.texts, "texts"
        texts = [_text(given, f"inputs[{index}]") for index, given in enumerate(self.inputs or ())]
        check_texts(texts, limits, "inputs")
        return texts, "inputs"


def _text(given: EmbedInput, field: str) -> str:
    for index, part in enumerate(given.content):
        if part.type != "text" or part.text is None:
            where = f"{field}.content[{index}]"
            raise not_served(where, f"`{where}`: a part that is no text")
    return "\n".join(part.text or "" for part in given.content)


# ---- responses


class EmbeddingsByType(msgspec.Struct, frozen=True, rename={"floats": "float"}):
    floats: list[list[float]] | UnsetType = UNSET
    int8: list[list[int]] | UnsetType = UNSET
    uint8: list[list[int]] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET


class ApiVersion(msgspec.Struct, frozen=True):
    version: str = "2"


class BilledUnits(msgspec.Struct, frozen=True):
    input_tokens: int


class EmbedMeta(msgspec.Struct, frozen=True):
    billed_units: BilledUnits
    api_version: ApiVersion = ApiVersion()


class EmbedResponse(msgspec.Struct, frozen=True):
    id: str
    embeddings: EmbeddingsByType
    texts: list[str]
    meta: EmbedMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


decoder: Final = msgspec.json.Decoder(EmbedRequest)
