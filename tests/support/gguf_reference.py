"""GGUF files as transformers reads them, which takes a third of its time here."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import gguf
import numpy as np
import pytest


@contextmanager
def read_once() -> Iterator[None]:
    """transformers parses a file anew for the configuration, the weights and the tokenizer, and asks for the map of
    names once for each module. Within this, it does each once a file, and the file's slices are plain arrays: those of
    numpy's class for mapped files take several times as long to make, and a vocabulary has hundreds of thousands.
    """
    mapped = np.memmap

    def plain(*arguments: Any, **options: Any) -> Any:
        return np.asarray(mapped(*arguments, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "memmap", plain)
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        yield
