"""transformers' own reading of a GGUF tokenizer."""

from pathlib import Path
from typing import Any

from stentor.tests.support.gguf_reference import read_once


def transformers_tokenizer(file: Path) -> Any:
    from transformers import AutoTokenizer

    with read_once():
        return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
