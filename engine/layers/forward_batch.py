"""What all layers are told of the tokens that they compute."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stentor import kernels
from stentor.kernels.forward import TracedTokens


@dataclass(frozen=True)
class LayerCache:
    """Blocks of one layer, in the layout that ``kernels`` owns."""

    k: torch.Tensor
    v: torch.Tensor
    group: int = 0
    """Of layers that share block tables: which of a batch's are this layer's."""

    @property
    def scaled(self) -> bool:
        """Whether keys and values are stored as float8, and the layer's scales go with them."""
        return self.k.dtype == torch.float8_e4m3fn


@dataclass(frozen=True)
class Texts:
    """Where texts begin that see themselves whole."""

    cu_seqlens: torch.Tensor
    """int32 [texts + 1]: text t has the tokens [starts[t], starts[t + 1])."""
    max_seqlen: int
    layout: kernels.KeyLayout | None = None
    """Of the keys, where the CPU attends to them."""


@dataclass(frozen=True)
class ForwardBatch:
    """The tokens of a pass, of all its sequences one after another; or what stands for them while it is recorded.

    Tokens see those before them, over ``caches`` to which they are added (``paged``), or all of their own text, of
    which nothing is kept (``texts``).
    """

    tokens: torch.Tensor | TracedTokens
    """int64 [tokens]"""
    positions: torch.Tensor
    """int64 [tokens]"""
    caches: Sequence[LayerCache] = ()
    """One a layer."""
    paged: Sequence[kernels.AttentionBatch] = ()
    """Of each group of layers; they differ in block tables and slots."""
    texts: Texts | None = None
    added: torch.Tensor | None = None
    """[tokens, hidden], added to the tokens' embeddings."""

    @classmethod
    def traced(cls, tokens: TracedTokens, caches: Sequence[LayerCache]) -> "ForwardBatch":
        """For a pass over these caches that is to be recorded."""
        return cls(tokens, torch.empty(0, dtype=torch.int64), caches)
