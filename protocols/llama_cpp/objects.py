"""Answers of llama.cpp's server."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..openai.usage import Timings

StopType = Literal["none", "eos", "limit", "word"]


class LlamaErrorBody(msgspec.Struct, frozen=True):
    code: int
    message: str
    type: str
    n_prompt_tokens: int | UnsetType = UNSET
    """Of a prompt that is too long: its tokens, at least."""
    n_ctx: int | UnsetType = UNSET


class LlamaError(msgspec.Struct, frozen=True):
    error: LlamaErrorBody


class TokenProbability(msgspec.Struct, frozen=True):
    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET
    """In place of it with ``post_sampling_probs``."""


class DrawnProbability(TokenProbability, frozen=True):
    top_logprobs: list[TokenProbability] | UnsetType = UNSET
    top_probs: list[TokenProbability] | UnsetType = UNSET
    """In place of them with ``post_sampling_probs``: only of tokens that could be sampled."""


class LlamaCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, or a chunk of one: all below ``tokens_evaluated`` comes with the last."""

    content: str
    tokens: list[int]
    stop: bool
    tokens_predicted: int
    tokens_evaluated: int
    index: int = 0
    id_slot: int = 0
    """There are no slots: sequences share one cache."""
    model: str | UnsetType = UNSET
    stop_type: StopType | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    completion_probabilities: list[DrawnProbability] | UnsetType = UNSET


class LlamaProps(msgspec.Struct, frozen=True):
    default_generation_settings: dict[str, Any]
    total_slots: int
    """Sequences that a step computes at most."""
    model_path: str
    """The model's first name; paths are not disclosed."""
    model_alias: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    build_info: str
    is_sleeping: bool
    """The model's weights are not in memory until the server is woken."""


class LlamaSlot(msgspec.Struct, frozen=True):
    id: int
    n_ctx: int
    is_processing: bool


class LlamaPrompt(msgspec.Struct, frozen=True):
    prompt: str


class LlamaTokensCount(msgspec.Struct, frozen=True):
    input_tokens: int


class LlamaEmbedding(msgspec.Struct, frozen=True):
    index: int
    embedding: list[list[float]]
    """One vector."""


class LlamaAdapter(msgspec.Struct, frozen=True):
    id: int
    path: str
    """The adapter's name; paths are not disclosed."""
    scale: float
    """0: no request has it unless it names it as model."""
