"""What a bidirectional encoder is made of. Torch-free.

One description fits the family: BERT (arXiv:1810.04805) and those that followed it differ in where norms stand, in how
they tell positions, and in whether the MLP has a gate.
"""

from dataclasses import dataclass, field
from typing import Literal

from .config_fields import ConfigError
from .model_spec import Activation, LayerType, RopeConfig

EncoderFamily = Literal["bert", "roberta", "distilbert", "mpnet", "modernbert", "nomic_bert", "gte", "jina"]
EncoderActivation = Literal["silu", "gelu_tanh", "gelu", "relu"]


@dataclass(frozen=True)
class TaskAdapters:
    """Low-rank additions to all layers, a set for each task (Jina v3, arXiv:2409.10173)."""

    names: tuple[str, ...]
    """Of the tasks, in the order in which they are stored."""
    rank: int
    scale: float


@dataclass(frozen=True)
class EncoderConfig:
    """One encoder. Tokens see each other in both directions, all of them or those within a window."""

    architecture: str
    """transformers' class name, for messages."""
    family: EncoderFamily
    """Whose names its tensors have."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_position: int
    """Most tokens of one text."""
    norm_eps: float
    activation: EncoderActivation = "gelu"
    gated: bool = False
    """The MLP is down(act(gate(x)) * up(x)), otherwise down(act(up(x)))."""
    pre_norm: bool = False
    """Norms stand before attention and MLP, and one at the end; otherwise behind each."""
    norm_bias: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    down_bias: bool = True
    learned_positions: bool = True
    position_offset: int = 0
    """Row of the first position in the table."""
    token_types: int = 0
    """Kinds of tokens that are told apart (first text, second text); 0: none."""
    relative_buckets: int = 0
    """Distances that are told apart by a bias on scores (T5's scheme, arXiv:1910.10683); 0: none."""
    relative_distance: int = 128
    """From which on all distances are one."""
    rope: RopeConfig | None = None
    rope_sliding: RopeConfig | None = None
    """Rotary of sliding layers."""
    sliding_window: int = 0
    """Tokens that a sliding layer sees before a token, and after it."""
    layer_types: tuple[LayerType, ...] = field(default_factory=tuple)
    """One per layer; empty means all full."""
    adapters: TaskAdapters | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def slides(self, layer: int) -> bool:
        return bool(self.layer_types) and self.layer_types[layer] == "sliding"

    @property
    def gated_activation(self) -> Activation:
        """The activation, where it is one that gates."""
        if self.activation == "relu":
            raise ConfigError("a gated MLP with relu is not known")
        return self.activation
