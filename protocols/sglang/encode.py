"""SGLang's ``/encode`` and ``/classify``: vectors and scores of texts."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from ..common import limits
from ..common.errors import missing, wrong
from ..openai.sampling import Name, TokenId, refuse
from .request import NULL

IGNORED: Final = ("log_metrics", "modalities", "sampling_params", "routing_key")
REFUSED: Final = ("input_embeds", "image_data", "audio_data", "video_data", "embed_overrides")


class SglangEncodeRequest(msgspec.Struct, kw_only=True):
    text: str | Annotated[list[str], Meta(min_length=1)] | None = None
    input_ids: Annotated[list[TokenId | list[TokenId]], Meta(min_length=1)] | None = None
    rid: Annotated[str, Meta(max_length=limits.MAX_REQUEST_ID)] | None = None
    lora_path: Name | None = None
    """The name of an adapter."""

    # Decoded so that clients get an error instead of being ignored.
    input_embeds: Any = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    embed_overrides: Any = None

    @property
    def field(self) -> str:
        return "input_ids" if self.text is None else "text"

    @property
    def several(self) -> bool:
        """Whether the answer is a list."""
        given: Any = self.input_ids if self.text is None else self.text
        return isinstance(given, list) and not isinstance(given[0], int)

    def check(self) -> None:
        """Raises BadRequest."""
        refuse(self, REFUSED)
        if self.text is None and self.input_ids is None:
            raise missing("text")
        if self.text is not None and self.input_ids is not None:
            raise wrong("input_ids", "excludes `text`; send one of them")


class SglangEncodeMeta(msgspec.Struct, frozen=True):
    id: str
    prompt_tokens: int
    weight_version: str
    e2e_latency: float
    """Seconds."""
    finish_reason: None = None
    cached_tokens: int = 0


class SglangVector(msgspec.Struct, frozen=True):
    embedding: list[float]
    """A vector, or scores."""
    meta_info: SglangEncodeMeta


class ClassifyFields(msgspec.Struct, frozen=True):
    """The fields that show whose ``/classify`` a request is for."""

    input: Raw = NULL
    messages: Raw = NULL
    text: Raw = NULL
    input_ids: Raw = NULL

    @property
    def of_sglang(self) -> bool:
        other = self.input != NULL or self.messages != NULL
        return not other and (self.text != NULL or self.input_ids != NULL)


encode_decoder: Final = msgspec.json.Decoder(SglangEncodeRequest)
classify_fields_decoder: Final = msgspec.json.Decoder(ClassifyFields)
