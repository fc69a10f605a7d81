"""One piece of media as a model's processor leaves it: the tensors that its encoder takes, in one run of bytes.

The format is that of safetensors, whose metadata says the modality.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

GIVEN: Final = "image_embeds"
"""The one tensor of a payload that brings the embeddings themselves: [embeddings, hidden]."""
_LENGTH = 8
"""Bytes before the header, which say how long it is."""


@dataclass(frozen=True)
class Payload:
    modality: str
    """``image``, ``video`` or ``audio``."""
    tensors: Mapping[str, torch.Tensor]
    """By the names of the arguments that the encoder takes them as."""


@dataclass(frozen=True)
class Encoded:
    """The same as a decoder takes it."""

    embeddings: torch.Tensor
    """[embeddings, hidden], in place of those of placeholder tokens."""
    behind: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """By layer: [embeddings, hidden], added to the stream behind it."""

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.embeddings, *self.behind.values()))


def write_payload(payload: Payload) -> bytes:
    tensors = {name: tensor.contiguous() for name, tensor in payload.tensors.items()}
    return save(tensors, {"modality": payload.modality})


def read_payload(data: bytes | memoryview) -> Payload:
    """The tensors are copies. Raises ValueError for bytes that are no payload."""
    raw = bytes(data)
    try:
        tensors = load(raw)
        header = json.loads(raw[_LENGTH : _LENGTH + int.from_bytes(raw[:_LENGTH], "little")])
        modality = header["__metadata__"]["modality"]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{len(raw)} bytes of media are no payload of tensors with a modality: {error}") from error
    return Payload(str(modality), tensors)
