"""``/pooling`` and ``/classify``, in vLLM's shape."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ..openai import limits
from ..openai.sampling import Name
from .common import InputFields, TextUsage
from .formats import NumberFields, Numbers

Task = Literal["embed", "token_embed", "classify", "token_classify", "sparse", "plugin"]


class PoolingRequest(NumberFields, kw_only=True):
    task: Task | None = None
    """None: what the model was made for."""
    dimensions: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)] | None = None
    normalize: bool | None = None
    prompt_name: Name | None = None
    """Of the model's own prompts, the one to put before texts."""


class ClassifyRequest(InputFields, kw_only=True):
    pass


# ---- responses


class PooledText(msgspec.Struct, frozen=True):
    index: int
    data: Numbers
    object: Literal["pooling"] = "pooling"


class PoolingResponse(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    data: list[PooledText]
    usage: TextUsage
    object: Literal["list"] = "list"


class Classified(msgspec.Struct, frozen=True):
    index: int
    label: str | None
    """Of the most likely class."""
    probs: list[float]
    num_classes: int


class ClassifyResponse(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    data: list[Classified]
    usage: TextUsage
    object: Literal["list"] = "list"


pooling_decoder: Final = msgspec.json.Decoder(PoolingRequest)
classify_decoder: Final = msgspec.json.Decoder(ClassifyRequest)
