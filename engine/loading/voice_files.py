"""Files by which a folder of voices is known, without reading them."""

import re
from pathlib import Path
from typing import Final

ONNX: Final = ".onnx"
"""File ending of voices as ONNX graphs."""
HIBARI_VOICES: Final = "voices.json"
HIBARI_VOCABULARY: Final = "vocab.json"
KOKORO_TYPE: Final = "style_text_to_speech_2"
"""``model_type`` of Kokoro in onnx-community's repositories."""
BARK_PRESETS: Final = "speaker_embeddings_path.json"
"""Names the files of Bark's voices."""
USUAL_GRAPH: Final = "onnx/model.onnx"
_STYLE: Final = re.compile(r"voices/[^/]+\.bin|voices[^/]*\.(bin|npz)")
_PROMPT: Final = re.compile(
    r"voices/[^/]+\.(bin|safetensors|wav|txt)|voices[^/]*\.(bin|npz)|speaker_embeddings/v2/[^/]+\.npy"
)


def description(file: Path) -> Path:
    """The description of a Piper voice: NAME.onnx.json."""
    return file.with_name(f"{file.name}.json")


def is_described(file: Path) -> bool:
    return description(file).is_file()


def is_hibari(folder: Path) -> bool:
    files = (HIBARI_VOICES, HIBARI_VOCABULARY)
    return all((folder / name).is_file() for name in files) and any(folder.glob(f"*{ONNX}"))


def style_files(folder: Path) -> list[Path]:
    """Files with the styles of Kokoro's voices: ``voices/NAME.bin``, or one file of all, in the order of names."""
    patterns = ("voices/*.bin", "voices*.bin", "voices*.npz")
    return sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file())


def holds_voices(folder: Path) -> bool:
    """Whether ``folder``, which has no config.json, is served as a folder of voices."""
    graphs = [*folder.glob(f"*{ONNX}")]
    return any(is_described(file) for file in graphs) or is_hibari(folder) or bool(graphs and style_files(folder))


def graphs_with_styles(listed: list[str]) -> list[str]:
    """Kokoro's graphs among the files of a repository; empty without styles."""
    styled = any(_STYLE.fullmatch(file) for file in listed)
    return sorted(file for file in listed if styled and file.endswith(ONNX) and f"{file}.json" not in listed)


def prompts_among(listed: list[str]) -> list[str]:
    """Files of a repository that make one model speak with several voices."""
    return sorted(file for file in listed if _PROMPT.fullmatch(file))
