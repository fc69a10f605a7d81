"""Requests to pooling models, and their results."""

from typing import Literal

import msgspec

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify", "sparse", "transcribe"]
"""A vector of the text, or of each token; scores of the text's classes, or of each token's; weights of tokens; the
tokens spoken in a window of audio, with their positions."""


class Pooling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Output to make of the hidden states of a prompt, instead of sampled tokens."""

    task: PoolingTask
    dimensions: int = 0
    """Vectors are cut to this size and normalised again (Matryoshka, arXiv:2205.13147); 0: all that the model makes."""
    normalize: bool | None = None
    """Whether vectors are normalised; None: the model's default."""
    activate: bool = True
    """Whether scores go through the model's activation (softmax, sigmoid); raw logits otherwise."""
    second: int = 0
    """Position in the prompt of the second text of a pair, for models with token types; 0: none."""
    last: bool = False
    """Whether it reads the last token alone, so that earlier tokens may come from the cache."""
    skip: int = 0
    """Tokens at the beginning that take part in attention and are not pooled."""
    parts: tuple[int, ...] = ()
    """``embed``: the ends of parts of the prompt, the first of which begins behind ``skip``. Each has a vector, and
    what follows the last has none; empty: one vector of all."""
    adapter: str = ""
    """One of the model's own tasks, where it has adapters for them; "" is none."""


class Pooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A matrix, row by row; one row unless there is one a token."""

    rows: int
    columns: int
    data: bytes
    """float32, little-endian, [rows, columns]"""
    ids: bytes = b""
    """``sparse``: the token of each column, uint32, little-endian; columns of weight 0 are left out."""
