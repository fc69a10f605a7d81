"""What a bidirectional encoder is made of. Torch-free.

One description fits the family: BERT (arXiv:1810.04805) and those that followed it differ in their layers, which are
values, and in how they tell positions.
"""

from dataclasses import dataclass
from typing import Literal

from .model_spec import Backbone

EncoderFamily = Literal["bert", "roberta", "distilbert", "mpnet", "modernbert", "nomic_bert", "gte", "jina"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Backbone):
    """One encoder. Tokens see each other in both directions, all of them or those within a window."""

    family: EncoderFamily
    """Whose names its tensors have."""
    prefix: str = "layers"
    learned_positions: bool = True
    position_offset: int = 0
    """Row of the first position in the table."""
    token_types: int = 0
    """Kinds of tokens that are told apart (first text, second text); 0: none."""
    relative_buckets: int = 0
    """Distances that are told apart by a bias on scores (T5's scheme, arXiv:1910.10683); 0: none."""
    relative_distance: int = 128
    """From which on all distances are one."""

    @property
    def norm_bias(self) -> bool:
        """Of all its norms."""
        return self.layers[0].norms.bias

    @property
    def pre_norm(self) -> bool:
        """Whether the stream itself is normed only behind the last layer."""
        return not self.layers[0].norms.mlp_sum
