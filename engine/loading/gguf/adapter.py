"""Reads adapters in the format of llama.cpp's ``convert_lora_to_gguf.py``: one file. Torch-free."""

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from ..errors import CheckpointError
from .file import GGUFFile, GGUFTensor
from .types import READABLE

_PART: Final = re.compile(r"(.+)\.lora_([ab])")


class GGUFPair(msgspec.Struct, frozen=True):
    """A and B for a tensor of the model's file."""

    name: str
    """The name of that tensor."""
    down: GGUFTensor
    """A: [inputs, rank], or [inputs, rank, experts], in GGUF's order."""
    up: GGUFTensor
    """B: [rank, outputs], or [rank, outputs, experts]."""

    @property
    def rank(self) -> int:
        return self.up.shape[0]


class GGUFAdapterFile:
    """An open adapter file; the caller closes the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @property
    def identity(self) -> str:
        """Identifies this file; changes if another takes its place."""
        stat = os.fstat(self.descriptor)
        return f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"

    @contextmanager
    def header(self) -> Iterator[GGUFFile]:
        """Open the header. Raises :class:`..errors.CheckpointError` for other files."""
        path = Path(f"/dev/fd/{self.descriptor}")
        try:
            gguf = GGUFFile(path)
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(str(path), "the adapter")) from error
        with gguf:
            yield gguf


def alpha_of(gguf: GGUFFile) -> float:
    """The adapter's alpha: the scale of products times their rank; 0: products are not scaled.

    Raises :class:`..errors.CheckpointError` if the file is no LoRA adapter.
    """
    kinds = gguf.metadata.get("general.type"), gguf.metadata.get("adapter.type")
    if kinds != ("adapter", "lora"):
        raise CheckpointError(
            f"its general.type is {kinds[0]!r} and its adapter.type {kinds[1]!r}, expected 'adapter' and 'lora'"
        )
    alpha = gguf.metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise CheckpointError(f"its adapter.lora.alpha is {alpha!r}, expected a number")
    if gguf.metadata.get("adapter.alora.invocation_tokens"):
        raise CheckpointError("adapter.alora.invocation_tokens is set: an activated LoRA is not served")
    return float(alpha)


def pairs_of(gguf: GGUFFile) -> list[GGUFPair]:
    """Raises :class:`..errors.CheckpointError`."""
    by_name: dict[str, dict[str, GGUFTensor]] = {}
    for tensor in gguf.tensors.values():
        found = _PART.fullmatch(tensor.name)
        if found is None:
            raise CheckpointError(f"it holds {tensor.name[:200]!r}; expected names that end with .lora_a and .lora_b")
        if tensor.type not in READABLE or len(tensor.shape) not in (2, 3):
            raise CheckpointError(f"{tensor.name} is {tensor.type.name} {list(tensor.shape)}; expected are matrices")
        by_name.setdefault(found[1], {})[found[2]] = tensor
    if not by_name:
        raise CheckpointError("it holds no tensors")
    pairs = []
    for name, parts in by_name.items():
        if len(parts) != 2:
            raise CheckpointError(f"it lacks {name[:200]}.lora_{'b' if 'a' in parts else 'a'}")
        pairs.append(GGUFPair(name, parts["a"], parts["b"]))
    return pairs
