"""Describes encoder-decoders that transcribe: an encoder of a window of audio, and a decoder that attends to it.
Torch-free."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from ..spec.cache import CacheSpec
from ..spec.model import Backbone

ENCODER_BLOCK = 16
"""Encoder positions of a block of an encoder slot."""
MOST_POSITIONS = 1 << 20
LONGEST_TRANSCRIPT = 448
"""Tokens of a prompt and its transcript that are asked for, at most: Whisper's context."""


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(ABC):
    """The decoder, and the shape of what it attends to. Each family adds its encoder."""

    architecture: str
    """transformers' class name, for messages."""
    vocab_size: int
    hidden_size: int
    """Of the decoder."""
    source_positions: int
    """Encoder positions of the longest window."""
    num_layers: int
    """Layers of the decoder."""
    num_heads: int
    """Heads of the decoder's attention; as many have keys."""
    max_position: int
    """Most tokens of the decoder."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end a transcript; empty if no file has them."""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """(decoder layer, head) of cross-attention that follows the speech; see :attr:`aligning_heads`."""
    median_filter: int = 7
    """Width, in positions, of the median filter on aligning heads' weights; odd."""
    head: str = ""
    """Stored name of the matrix that makes logits; "": the embedding."""
    head_bias: str = ""
    """Stored name of what has its bias; "": there is none."""

    @property
    def aligns(self) -> bool:
        """Whether words are aligned by its cross-attention."""
        return False

    @property
    @abstractmethod
    def samples(self) -> int:
        """Samples of the longest window, at 16 kHz."""

    @abstractmethod
    def positions(self, samples: int) -> int:
        """Encoder positions of a window of so many samples; at least 1."""

    @property
    @abstractmethod
    def decoder(self) -> Backbone:
        """Layers with cross-attention."""

    @property
    @abstractmethod
    def decoder_norm(self) -> str:
        """Stored name of the norm behind the decoder's layers, of their kind."""

    @property
    @abstractmethod
    def position_table(self) -> str:
        """Stored name of the decoder's learned positions; "": there are none."""

    @property
    def position_rows(self) -> int:
        """Rows of their table."""
        return self.max_position

    @property
    def sinusoids(self) -> bool:
        """Whether the decoder's positions are sinusoids, divided by √hidden (Canary)."""
        return False

    @property
    def embedding_norm(self) -> str:
        """Stored name of the norm of a token's embedding and position; "": none."""
        return ""

    def name_of(self, stored: str) -> str:
        """The name of a stored tensor here."""
        return stored

    @property
    def cache_groups(self) -> tuple[CacheSpec, ...]:
        """Caches of the decoder's self-attention."""
        return (CacheSpec("full", tuple(range(self.num_layers)), 0, self.num_heads, self.head_dim),)

    @property
    def cross_group(self) -> CacheSpec:
        """Cache of its cross-attention: one encoder slot holds all positions of the longest window."""
        return replace(self.cache_groups[0], kind="cross", positions=self.source_positions)

    @property
    def slot_blocks(self) -> int:
        """Blocks of an encoder slot."""
        return -(-self.source_positions // ENCODER_BLOCK)

    @property
    def head_dim(self) -> int:
        """Head dim of the decoder."""
        return self.hidden_size // self.num_heads

    @property
    def aligning_heads(self) -> tuple[tuple[int, int], ...]:
        """The configured alignment heads, or all heads of the upper half of the layers."""
        if self.alignment_heads:
            return self.alignment_heads
        layers = range(self.num_layers // 2, self.num_layers)
        return tuple((layer, head) for layer in layers for head in range(self.num_heads))
