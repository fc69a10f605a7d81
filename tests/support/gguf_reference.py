"""GGUF files as transformers reads them, which takes a third of its time here."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import gguf
import pytest


@contextmanager
def read_once() -> Iterator[None]:
    """transformers parses a file anew for the configuration, the weights and the tokenizer, and asks for the map of
    names once for each module. Within this, it does each once a file."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        yield
