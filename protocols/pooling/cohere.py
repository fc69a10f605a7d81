"""``/v2/embed`` of Cohere's API."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common import limits
from ..common.errors import wrong
from ..common.limits import Limits
from ..openai.sampling import Name
from .contents import Content, ContentObject, check_contents, content_of, picture

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class EmbedRequest(msgspec.Struct, kw_only=True):
    model: Name | None = None
    input_type: Name | None = None
    texts: Annotated[list[str], Meta(min_length=1)] | None = None
    inputs: Annotated[list[ContentObject], Meta(min_length=1)] | None = None
    images: Annotated[list[str], Meta(min_length=1)] | None = None
    """Data URLs."""
    output_dimension: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)] | None = None
    embedding_types: Annotated[list[EmbeddingType], Meta(min_length=1)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    """Which end of a text that is too long is cut off."""
    max_tokens: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)] | None = None
    priority: limits.Priority = 0

    def contents(self, limits: Limits) -> tuple[list[Content], str]:
        """The inputs, and their field. Raises BadRequest."""
        given = [name for name in ("texts", "inputs", "images") if getattr(self, name) is not None]
        if len(given) != 1:
            raise wrong(
                "texts",
                "is required, or `inputs` or `images` in its place",
                None if given else "missing_required_parameter",
            )
        (field,) = given
        if self.texts is not None:
            contents: list[Content] = [*self.texts]
        elif self.inputs is not None:
            contents = [content_of(each, f"inputs[{index}]") for index, each in enumerate(self.inputs)]
        else:
            contents = [[picture(each, f"images[{index}]")] for index, each in enumerate(self.images or ())]
        check_contents(contents, limits, field)
        return contents, field


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
    images: int | UnsetType = UNSET


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
