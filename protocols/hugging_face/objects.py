"""Answers of Text Generation Inference and Text Embeddings Inference."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

FinishReason = Literal["length", "eos_token", "stop_sequence"]


class HuggingFaceError(msgspec.Struct, frozen=True):
    error: str
    error_type: str


class GeneratedToken(msgspec.Struct, frozen=True):
    id: int
    text: str
    logprob: float
    special: bool


class GenerateDetails(msgspec.Struct, frozen=True):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[Any]
    tokens: list[GeneratedToken]


class GenerateResponse(msgspec.Struct, frozen=True):
    generated_text: str
    details: GenerateDetails | UnsetType = UNSET


class StreamDetails(msgspec.Struct, frozen=True):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamResponse(msgspec.Struct, frozen=True):
    index: int
    token: GeneratedToken
    generated_text: str | None = None
    details: StreamDetails | None = None


class TokenWeight(msgspec.Struct, frozen=True):
    index: int
    """The token."""
    value: float


class Prediction(msgspec.Struct, frozen=True):
    score: float
    label: str


class ServerInfo(msgspec.Struct, frozen=True):
    """The description of either server; lengths are null until the model is loaded."""

    model_id: str
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int | None
    max_input_tokens: int | None
    max_total_tokens: int | None
    max_client_batch_size: int
    max_best_of: int
    max_stop_sequences: int
    version: str
    router: str
