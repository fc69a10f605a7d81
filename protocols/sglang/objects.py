"""Answers of SGLang's ``/generate``."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

TokenScore = list[float | int | str | None]
"""Three: log-probability, token, and its text if that was requested. The first token of a prompt has no
log-probability."""


class SglangFinish(msgspec.Struct, frozen=True, omit_defaults=True):
    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    """The token or the text that ended it."""
    length: int | None = None
    """Tokens of an answer that was cut."""
    message: str | None = None
    """Why it was aborted."""


class SglangMeta(msgspec.Struct, frozen=True):
    id: str
    finish_reason: SglangFinish | None
    prompt_tokens: int
    weight_version: str
    completion_tokens: int
    cached_tokens: int
    input_token_logprobs: list[TokenScore] | UnsetType = UNSET
    output_token_logprobs: list[TokenScore] | UnsetType = UNSET
    output_token_logprobs_length: int | UnsetType = UNSET
    input_top_logprobs: list[list[TokenScore] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[TokenScore] | None] | UnsetType = UNSET
    input_token_ids_logprobs: list[list[TokenScore]] | UnsetType = UNSET
    """Always empty: prompts are not probed."""
    output_token_ids_logprobs: list[list[TokenScore]] | UnsetType = UNSET
    e2e_latency: float | UnsetType = UNSET
    """Seconds; of a whole answer."""


class SglangAnswer(msgspec.Struct, frozen=True):
    text: str
    output_ids: list[int]
    meta_info: SglangMeta
    prompt_token_ids: list[int] | UnsetType = UNSET
    index: int | UnsetType = UNSET
    """In a stream of several answers: which one."""
