"""Files by which a folder of voices is known, without reading them."""

from pathlib import Path
from typing import Final

ONNX: Final = ".onnx"
"""File ending of voices as ONNX graphs."""
HIBARI_VOICES: Final = "voices.json"
HIBARI_VOCABULARY: Final = "vocab.json"


def description(file: Path) -> Path:
    """The description of a Piper voice: NAME.onnx.json."""
    return file.with_name(f"{file.name}.json")


def is_described(file: Path) -> bool:
    return description(file).is_file()


def is_hibari(folder: Path) -> bool:
    files = (HIBARI_VOICES, HIBARI_VOCABULARY)
    return all((folder / name).is_file() for name in files) and any(folder.glob(f"*{ONNX}"))


def holds_voices(folder: Path) -> bool:
    """Whether ``folder``, which has no config.json, is served as a folder of voices."""
    return any(is_described(file) for file in folder.glob(f"*{ONNX}")) or is_hibari(folder)
