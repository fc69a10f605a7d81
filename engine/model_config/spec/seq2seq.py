"""Describes encoder-decoders as values: the decoder, and the shape of what its tokens attend to. Torch-free."""

from abc import abstractmethod

import msgspec

from stentor.protocols.common.abstract import AbstractStruct

from .cache import CacheSpec
from .model import Backbone
from .token_input import TokenInputSpec

EMBEDDING = "model.decoder.embed_tokens"
"""Name here of the tokens' embeddings, which encoders of texts share."""
ENCODER_BLOCK = 16
"""Encoder positions of a block of an encoder slot."""


class Seq2SeqConfig(msgspec.Struct, metaclass=AbstractStruct, frozen=True, kw_only=True):
    """The decoder, and the shape of what it attends to. Each family adds its encoder."""

    architecture: str
    """transformers' class name, for messages."""
    vocab_size: int
    hidden_size: int
    """Of the decoder."""
    source_positions: int
    """Encoder positions of the longest input."""
    num_layers: int
    """Layers of the decoder."""
    num_heads: int
    """Heads of the decoder's attention; unless :attr:`decoder` says otherwise, as many have keys."""
    max_position: int
    """Most tokens of the decoder."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an output; empty if no file has them."""
    head: str = ""
    """Stored name of the matrix that makes logits; "": the embedding."""
    head_bias: str = ""
    """Stored name of what has its bias; "": there is none."""

    @property
    @abstractmethod
    def decoder(self) -> Backbone:
        """Layers with cross-attention."""

    @property
    @abstractmethod
    def decoder_norm(self) -> str:
        """Stored name of the norm behind the decoder's layers, of their kind; "": none."""

    @property
    @abstractmethod
    def decoder_input(self) -> TokenInputSpec:
        """What the decoder's layers take for tokens."""

    @property
    def logits_scale(self) -> float:
        """Factor on the hidden states that make logits."""
        return 1.0

    def name_of(self, stored: str) -> str:
        """The name of a stored tensor here."""
        return stored

    @property
    def cache_groups(self) -> tuple[CacheSpec, ...]:
        """Caches of the decoder's self-attention."""
        return (CacheSpec("full", tuple(range(self.num_layers)), 0, self.num_heads, self.head_dim),)

    @property
    def cross_group(self) -> CacheSpec:
        """Cache of its cross-attention: one encoder slot holds all positions of the longest input."""
        cross = self.decoder.layers[0].crossing
        assert cross is not None
        layers = tuple(range(self.num_layers))
        return CacheSpec("cross", layers, 0, cross.kv_heads, cross.head_dim, positions=self.source_positions)

    @property
    def slot_blocks(self) -> int:
        """Blocks of an encoder slot."""
        return -(-self.source_positions // ENCODER_BLOCK)

    @property
    def head_dim(self) -> int:
        """Head dim of the decoder."""
        return self.hidden_size // self.num_heads
