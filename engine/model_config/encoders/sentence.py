"""Describes sentence-transformers' modules, from hidden states to one vector a text. Torch-free."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
DenseActivation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]


class Dense(msgspec.Struct, frozen=True):
    """A linear layer; its tensors ``linear.weight`` and optionally ``linear.bias`` are in ``folder``."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: DenseActivation


class LayerNormed(msgspec.Struct, frozen=True):
    """A layer norm; its tensors ``norm.weight`` and ``norm.bias`` are in ``folder``."""

    folder: Path
    size: int


class Normalized(msgspec.Struct, frozen=True):
    """Scaling of vectors to length 1."""


Module = Dense | LayerNormed | Normalized


class SpladeForm(msgspec.Struct, frozen=True):
    """How logits become weights of the vocabulary: log(1 + relu(logits)), pooled over a text's tokens."""

    sums: bool = False
    """Whether tokens are summed, not their maximum taken."""
    twice: bool = False
    """Whether the logarithm is taken twice (arXiv:2504.14839)."""


class SentenceModules(msgspec.Struct, frozen=True):
    """The modules behind a model's hidden states."""

    pooling: tuple[PoolingMode, ...]
    """Several modes are concatenated."""
    include_prompt: bool = True
    """Whether a prompt's tokens are pooled too."""
    after: tuple[Module, ...] = ()
    """In order."""
    max_length: int | None = None
    """Tokens beyond are truncated; None: the model's limit."""
    lower_case: bool = False
    prompts: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Prefixes of texts by task name."""
    default_prompt: str | None = None
    """Name of the default prefix."""
    splade: SpladeForm | None = None
    queries: str = ""
    """Folder with a weight of each token, of which queries are made (arXiv:2411.04403); "": queries run the model."""
    bare: bool = False
    """Whether ASCII punctuation is removed and white space collapsed (SigLIP)."""

    @property
    def normalizes(self) -> bool:
        """Whether the last module scales vectors to length 1, which a request can turn off."""
        return bool(self.after) and isinstance(self.after[-1], Normalized)
