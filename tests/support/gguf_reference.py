"""GGUF files as transformers reads them, which takes a quarter of its time here."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import gguf
import numpy as np
import pytest


class _PlainReader(gguf.GGUFReader):
    """Slices of a memory map cost five times as much as those of a plain array over it."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value.view(np.ndarray) if name == "data" else value)


@contextmanager
def read_once() -> Iterator[None]:
    """transformers parses a file anew for the configuration, the weights and the tokenizer, and asks for the map of
    names once for each module. Within this, it does each once a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", cache(_PlainReader))
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        yield
