"""Ollama's requests with their checks.

Names and defaults are those of its clients in Python and JavaScript: answers are streamed unless the client says
otherwise, images come in base64, and the arguments of calls are objects.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..openai.sampling import Name, TopLogprobs, not_served

IGNORED_OPTIONS: Final = (
    "num_ctx",
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "numa",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mmap",
    "use_mlock",
    "embedding_only",
    "repeat_last_n",
    "penalize_newline",
    "mirostat_tau",
    "mirostat_eta",
)
"""Options for loading a model, or for features without effect here: a penalty counts the whole sequence."""
IGNORED: Final = ("keep_alive", *(f"options.{name}" for name in IGNORED_OPTIONS))
CHAT_IGNORED: Final = (*IGNORED, "truncate", "shift")
REFUSED: Final = ("template", "context", "width", "height", "steps")
"""Fields of a request to generate that are refused."""

Effort = Literal["low", "medium", "high", "max"]
KeepAlive = str | float | None
Schema = dict[str, Any]


class OllamaOptions(msgspec.Struct, frozen=True):
    """None means that the field is absent: the model's default applies."""

    num_predict: int | None = None
    """Less than 1: as many as there is room for."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: float | None = None
    seed: Annotated[int, Meta(ge=limits.INT64_MIN, le=limits.INT64_MAX)] | None = None
    """Less than 0: a random one."""
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: int | None = None
    typical_p: float | None = None
    tfs_z: float | None = None

    def check(self) -> None:
        """Raises BadRequest for unsupported sampling methods."""
        if self.mirostat:
            raise not_served("options.mirostat")
        for name in ("typical_p", "tfs_z"):
            if getattr(self, name) not in (None, 1):
                raise not_served(f"options.{name}", f"`options.{name}` other than 1")

    def fields(self) -> dict[str, Any]:
        """The same as fields of chat and completions."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return {
            "max_tokens": self.num_predict if self.num_predict is not None and self.num_predict > 0 else None,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": self.seed if self.seed is not None and self.seed >= 0 else None,
            "stop": stop or None,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }


class GivenFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any] = {}


class GivenCall(msgspec.Struct, frozen=True):
    function: GivenFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, frozen=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[str] | None = None
    """In base64."""
    tool_calls: list[GivenCall] | None = None
    tool_name: str | None = None
    """For a result: the called function."""
    tool_call_id: str | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """Fields shared by conversations and prompts."""

    model: Name
    stream: bool = True
    format: str | Schema | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None
    think: bool | Effort | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None

    @property
    def unloads(self) -> bool:
        """Whether the request is to unload the model."""
        return self.keep_alive == 0 or self.keep_alive in ("0", "0s")

    def check(self) -> None:
        """Raises BadRequest."""
        if self.options is not None:
            self.options.check()
        if isinstance(self.format, str) and self.format not in ("", "json"):
            raise not_served("format", '`format` other than "json" or a schema')


class OllamaChatRequest(GenerationFields, kw_only=True):
    messages: list[OllamaMessage] = []
    """None loads the model."""
    tools: list[Any] | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaGenerateRequest(GenerationFields, kw_only=True):
    prompt: str = ""
    """Empty, without images, loads the model."""
    suffix: str = ""
    system: str = ""
    images: list[str] | None = None
    raw: bool = False
    """The prompt is used unchanged, without a template."""
    truncate: bool | None = None
    shift: bool | None = None
    template: Any = None
    context: Any = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None

    def check(self) -> None:
        super().check()
        for field in REFUSED:
            if getattr(self, field):
                raise not_served(field)
        if self.raw and self.images:
            raise not_served("images", "`images` with `raw`")


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    model: Name
    input: str | list[str] = []
    truncate: bool = True
    dimensions: Annotated[int, Meta(ge=1, le=limits.INT32_MAX)] | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True):
    model: Name
    prompt: str = ""
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None


class OllamaModelRequest(msgspec.Struct, kw_only=True):
    """A request to show or pull a model; ``name`` is an older name of the field."""

    model: Name = ""
    name: Name = ""
    stream: bool = True
    verbose: bool | None = None
    insecure: bool | None = None

    @property
    def named(self) -> str:
        return self.model or self.name


chat_decoder: Final = msgspec.json.Decoder(OllamaChatRequest)
generate_decoder: Final = msgspec.json.Decoder(OllamaGenerateRequest)
embed_decoder: Final = msgspec.json.Decoder(OllamaEmbedRequest)
embeddings_decoder: Final = msgspec.json.Decoder(OllamaEmbeddingsRequest)
named_decoder: Final = msgspec.json.Decoder(OllamaModelRequest)
