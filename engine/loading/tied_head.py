"""Finds a stored head that is not the embedding, although the config.json says so.

transformers then uses the stored one: such a file is of a fine-tuned model whose configuration was not renewed, or of
an architecture whose class never ties them (Nemotron-H, Ling 3.0).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from ..model_config.seq2seq.text import TextToTextConfig
from ..model_config.spec.model import HEADS
from ..model_config.spec.seq2seq import EMBEDDING
from .errors import CheckpointError
from .safetensors_index import StoredTensor

_PIECE: Final = 1 << 20
"""Bytes that are compared at a time."""


def is_embedding(head: StoredTensor, name: str, tensors: Iterable[StoredTensor]) -> bool:
    """Whether ``head`` has the values of the embedding, of this ``name``, among ``tensors``, or these have none. Raises
    :class:`CheckpointError` if they cannot be read."""
    names = {f"{name}.weight", f"{name.rpartition('.')[2]}.weight"}
    embedding = next((tensor for tensor in tensors if tensor.name in names), None)
    return embedding is None or _equal(head, embedding)


def with_head(read: TextToTextConfig, tensors: Sequence[StoredTensor]) -> TextToTextConfig:
    """The encoder-decoder with the head among ``tensors``, or without one of its own if that is the embedding or
    missing."""
    head = next((tensor for tensor in tensors if read.name_of(tensor.name) in HEADS), None)
    embedding = next((tensor.name for tensor in tensors if read.name_of(tensor.name) == f"{EMBEDDING}.weight"), "")
    if head is None or is_embedding(head, embedding.removesuffix(".weight"), tensors):
        return replace(read, head="")
    return replace(read, head=read.name_of(head.name).removesuffix(".weight"))


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    if (one.dtype, one.shape, one.strides, one.nbytes) != (other.dtype, other.shape, other.strides, other.nbytes):
        return False
    if (one.file, one.offset) == (other.file, other.offset):
        return True
    try:
        with one.file.open("rb") as first, other.file.open("rb") as second:
            first.seek(one.offset)
            second.seek(other.offset)
            for at in range(0, one.nbytes, _PIECE):
                count = min(_PIECE, one.nbytes - at)
                if first.read(count) != second.read(count):
                    return False
    except OSError as error:
        raise CheckpointError(f"Cannot load {one.file}: {error.strerror or error}.") from error
    return True
