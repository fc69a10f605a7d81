"""``/pooling`` and ``/classify``, in vLLM's shape."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta

from ..common import limits
from ..common.errors import refused, wrong
from ..common.limits import Limits
from ..openai.sampling import Name
from .common import InputFields, TextUsage
from .formats import NumberFields, Numbers

Task = Literal["embed", "token_embed", "classify", "token_classify", "sparse", "plugin"]


class PoolingRequest(NumberFields, kw_only=True):
    task: Task | None = None
    """None: the model's own task."""
    dimensions: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)] | None = None
    normalize: bool | None = None
    prompt_name: Name | None = None
    """The prompt of the model to put before texts."""
    data: Any = UNSET
    """For a plugin, in place of ``input``."""

    def check(self, limits: Limits) -> None:
        """Raises BadRequest."""
        if self.task is None and self.data is not UNSET:
            self.task = "plugin"
        if self.task != "plugin":
            if self.data is not UNSET:
                raise wrong("data", "is for `task: plugin`; texts are `input`")
            return super().check(limits)
        self.check_reading()
        if self.data is UNSET:
            raise wrong("data", "is required for `task: plugin`", "missing_required_parameter")
        for name in ("input", "messages"):
            if getattr(self, name) is not None:
                raise refused(name, "a plugin reads `data` alone")


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


class PluginResponse(msgspec.Struct, frozen=True):
    request_id: str
    created_at: int
    data: Any
    """The plugin's output."""


class Classified(msgspec.Struct, frozen=True):
    index: int
    label: str | None
    """The most likely class."""
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
