"""Which of transformers' processors a model has, as its files say it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILES: Final = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def processor_name(folder: Path) -> str | None:
    """None where no file names one."""
    return next((name for name in _names(folder) if isinstance(name, str)), None)


def _names(folder: Path) -> Iterator[object]:
    for file in FILES:
        if (folder / file).is_file():
            said = json.loads((folder / file).read_text())
            if isinstance(said, dict):
                yield said.get("processor_class")
