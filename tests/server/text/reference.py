"""transformers' own reading of a GGUF tokenizer."""

from pathlib import Path
from typing import Any


def transformers_tokenizer(file: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
