"""One medium as prepared by a model's processor: the input tensors of its encoder, serialised.

The format is safetensors; its metadata has the modality.
"""

import json
from collections.abc import Mapping
from typing import Final

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

GIVEN: Final = "image_embeds"
"""The only tensor of a payload that brings embeddings directly: [embeddings, hidden]."""
PROMPT: Final = "prompt"
"""The modality of a prompt that brings embeddings of its tokens."""
_LENGTH = 8
"""Bytes of the header's length, before the header."""


class Payload(msgspec.Struct, frozen=True):
    modality: str
    """``image``, ``video`` or ``audio``, or :data:`PROMPT`."""
    tensors: Mapping[str, torch.Tensor]
    """By argument name of the encoder."""


class Encoded(msgspec.Struct, frozen=True):
    """An encoded medium."""

    embeddings: torch.Tensor
    """[embeddings, hidden], in place of those of placeholder tokens."""
    behind: Mapping[int, torch.Tensor] = msgspec.field(default_factory=dict)
    """By layer: [embeddings, hidden], added to the stream behind it."""
    tokens: torch.Tensor | None = None
    """int64 [embeddings]: the tokens whose embeddings these are, for the decoder to look up; None: :attr:`embeddings`
    has them."""

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.embeddings, *self.behind.values()))


def write_payload(payload: Payload) -> bytes:
    tensors = {name: tensor.contiguous() for name, tensor in payload.tensors.items()}
    return save(tensors, {"modality": payload.modality})


def read_payload(data: bytes | memoryview) -> Payload:
    """Parse a payload; tensors are copies. Raises ValueError for other bytes."""
    raw = bytes(data)
    try:
        tensors = load(raw)
        header = json.loads(raw[_LENGTH : _LENGTH + int.from_bytes(raw[:_LENGTH], "little")])
        modality = header["__metadata__"]["modality"]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{len(raw)} bytes of media are no payload of tensors with a modality: {error}") from error
    return Payload(str(modality), tensors)
