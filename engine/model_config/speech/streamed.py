"""Describes streaming transcription models: a decoder that hears some more audio at each position. Torch-free."""

from abc import abstractmethod

import msgspec

from stentor.protocols.common.abstract import AbstractStruct

from ..spec.model import ModelSpec


class StreamedConfig(msgspec.Struct, metaclass=AbstractStruct, frozen=True, kw_only=True):
    """The decoder, and how its positions follow the samples. Each family adds its encoder."""

    architecture: str
    """transformers' class name, for messages."""
    decoder: ModelSpec

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    @property
    def max_position(self) -> int:
        return self.decoder.max_position

    @property
    def bos_token_id(self) -> int | None:
        return self.decoder.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.decoder.eos_token_ids

    @property
    @abstractmethod
    def step(self) -> int:
        """Samples of one position, at 16 kHz."""

    @property
    @abstractmethod
    def first(self) -> int:
        """Samples that the first position needs; at least 1."""
