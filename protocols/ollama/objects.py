"""Ollama's answers. Durations are in nanoseconds, times as RFC 3339 has them."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..openai.chat import TokenLogprob

DoneReason = Literal["stop", "length", "load", "unload"]


class OllamaError(msgspec.Struct, frozen=True):
    error: str


class MadeFunction(msgspec.Struct, frozen=True):
    index: int
    name: str
    arguments: dict[str, Any]


class MadeCall(msgspec.Struct, frozen=True):
    id: str
    function: MadeFunction


class OllamaAnswer(msgspec.Struct, frozen=True):
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[MadeCall] | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or a chunk. Fields below ``logprobs`` come with the last chunk; after a load, only the reason."""

    model: str
    created_at: str
    done: bool
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    """Time before the request began: the model is always loaded."""
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaChatResponse(_Answer, frozen=True, kw_only=True):
    message: OllamaAnswer


class OllamaGenerateResponse(_Answer, frozen=True, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class OllamaEmbedResponse(msgspec.Struct, frozen=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsResponse(msgspec.Struct, frozen=True):
    embedding: list[float]


class ModelDetails(msgspec.Struct, frozen=True):
    """Unknown values are empty."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(msgspec.Struct, frozen=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    """Hash of the name and of the operator's MODEL; the files are not read for it."""
    details: ModelDetails


class OllamaModels(msgspec.Struct, frozen=True):
    models: list[ListedModel]


class RunningModel(msgspec.Struct, frozen=True):
    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaLoaded(msgspec.Struct, frozen=True):
    models: list[RunningModel]


class OllamaModel(msgspec.Struct, frozen=True):
    modified_at: str
    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaVersion(msgspec.Struct, frozen=True):
    version: str


class OllamaStatus(msgspec.Struct, frozen=True):
    status: str
