"""What a bidirectional encoder is made of. Torch-free.

One description fits the family: BERT (arXiv:1810.04805) and those that followed it differ in their layers, which are
values, and in how they tell positions.
"""

from dataclasses import dataclass
from typing import Literal

from .model_spec import Backbone

EncoderFamily = Literal["bert", "roberta", "distilbert", "mpnet", "modernbert", "nomic_bert", "gte", "jina", "clip"]


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
    embedding_norm: bool = True
    """Whether embeddings are normed before the first layer."""
    projection: int = 0
    """Numbers that a last layer makes of each hidden state, in the space of pictures (CLIP); 0: there is none."""
    projection_bias: bool = False
    embeds_media: bool = False
    """Media stand in place of embeddings of tokens, not of what the last layer makes of these (CLIP)."""
    filled: bool = False
    """Texts are filled up to ``max_position`` with the padding token, which is seen (SigLIP)."""

    @property
    def output_size(self) -> int:
        return self.projection or self.hidden_size

    @property
    def norm_bias(self) -> bool:
        """Of all its norms."""
        return self.layers[0].norms.bias

    @property
    def pre_norm(self) -> bool:
        """Whether the stream itself is normed only behind the last layer."""
        return not self.layers[0].norms.mlp_sum
