"""Describes a bidirectional encoder. Torch-free.

One description covers the family: BERT (arXiv:1810.04805) and its successors differ in their layers, which are values,
and in their positions.
"""

from typing import Literal

from .model import Backbone

EncoderFamily = Literal[
    "bert", "electra", "roberta", "distilbert", "mpnet", "modernbert", "nomic_bert", "gte", "jina", "clip"
]


class EncoderConfig(Backbone, frozen=True, kw_only=True):
    """One encoder. Tokens attend in both directions, to all or within a window."""

    family: EncoderFamily
    """Determines the names of its tensors."""
    prefix: str = "layers"
    learned_positions: bool = True
    position_offset: int = 0
    """Row of the first position in the table."""
    token_types: int = 0
    """Number of token types (first text, second text); 0: none."""
    task_types: int = 0
    """Number of embeddings of tasks, of which all tokens get the first (ERNIE); 0: none."""
    embedding_size: int = 0
    """Size of embeddings that a linear layer maps to hidden states (ELECTRA); 0: they are hidden states."""
    relative_buckets: int = 0
    """Number of distance buckets for a bias on scores (T5's scheme, arXiv:1910.10683); 0: none."""
    relative_distance: int = 128
    """From here on all distances share a bucket."""
    embedding_norm: bool = True
    """Whether embeddings are normed before the first layer."""
    projection: int = 0
    """Size of a final projection of hidden states into the space of pictures (CLIP); 0: none."""
    projection_bias: bool = False
    embeds_media: bool = False
    """Whether media replace embeddings of tokens, not projected hidden states (CLIP)."""
    filled: bool = False
    """Whether texts are padded to ``max_position``, and padding is seen (SigLIP)."""

    @property
    def output_size(self) -> int:
        return self.projection or self.hidden_size

    @property
    def norm_bias(self) -> bool:
        """Whether its norms have a bias."""
        return self.layers[0].norms.bias

    @property
    def pre_norm(self) -> bool:
        """Whether norms precede each part (pre-norm)."""
        return not self.layers[0].norms.mlp_sum
