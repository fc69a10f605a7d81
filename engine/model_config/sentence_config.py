"""How hidden states become one vector a text, in the words of sentence-transformers' modules. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
DenseActivation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]


@dataclass(frozen=True)
class Dense:
    """A linear layer; its tensors ``linear.weight`` and perhaps ``linear.bias`` are in ``folder``."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: DenseActivation


@dataclass(frozen=True)
class LayerNormed:
    """A layer norm; its tensors ``norm.weight`` and ``norm.bias`` are in ``folder``."""

    folder: Path
    size: int


@dataclass(frozen=True)
class Normalized:
    """Vectors are scaled to length 1."""


Module = Dense | LayerNormed | Normalized


@dataclass(frozen=True)
class SentenceModules:
    """What comes behind a model's hidden states."""

    pooling: tuple[PoolingMode, ...]
    """Laid one after another, where there are several."""
    include_prompt: bool = True
    """Whether a prompt's tokens are pooled with the rest."""
    after: tuple[Module, ...] = ()
    """In order."""
    max_length: int | None = None
    """Tokens beyond are cut off; None: the model's own limit."""
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Put before texts of a task, by its name."""
    default_prompt: str | None = None
    """The name of the one that is put before texts of which nothing is said."""
    bare: bool = False
    """Texts lose their punctuation (ASCII), and white space between words becomes one blank (SigLIP)."""

    @property
    def normalizes(self) -> bool:
        return any(isinstance(module, Normalized) for module in self.after)
