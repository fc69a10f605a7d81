"""Models with parts in other repositories: Ultravox's files name their decoder, but do not contain it, and Pocket TTS's
their codec."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from .errors import CheckpointError
from .safetensors_index import read_json

_PARTS: Final[Mapping[str, str]] = {"text_model_id": "text_config", "audio_model_id": "audio_config"}
"""Fields that name another model, and fields that hold its config.json."""


class JoinedConfig(NamedTuple):
    config: Mapping[str, object]
    """The config.json with those of its companions."""
    folders: tuple[Path, ...]
    """The companions' folders."""


def companions(config: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(config field, name) of each part in another place: a folder, or a repository on Hugging Face."""
    if config.get("model_type") != "ultravox":
        return
    for field, part in _PARTS.items():
        named = config.get(field)
        if isinstance(named, str) and named:
            yield part, named


def companions_in(folder: Path) -> list[str]:
    """Companions of the model in ``folder``; empty without a readable config.json, which opening it reports."""
    file = folder / "config.json"
    try:
        named = [named for _, named in companions(read_json(file))] if file.is_file() else []
        codec = voice_codec(folder)
    except CheckpointError:
        return []
    return named if codec is None or (folder / codec).is_dir() else [*named, codec]


def voice_codec(folder: Path) -> str | None:
    """The codec of a checkpoint of Pocket TTS: a folder, perhaps within it, or a repository; None for other models.

    Raises :class:`CheckpointError`.
    """
    files = folder / "config.json", folder / "processor_config.json"
    if not all(file.is_file() for file in files) or read_json(files[0]).get("model_type") != "pocket_tts":
        return None
    codec = read_json(files[1]).get("audio_tokenizer")
    named = codec.get("audio_tokenizer_name_or_path") if isinstance(codec, Mapping) else None
    return named if isinstance(named, str) and named else None


def with_companions(config: Mapping[str, object]) -> JoinedConfig:
    """Add the companions' configs. Raises :class:`CheckpointError` if one has not been fetched."""
    found, folders = dict(config), []
    for part, named in companions(config):
        folder = companion_folder(named)
        described = read_json(folder / "config.json")
        inner = described.get("text_config")
        if part == "text_config" and isinstance(inner, Mapping):
            raise CheckpointError(f"{named} takes media itself, expected a text model: nothing keeps both apart here.")
        found[part] = described
        folders.append(folder)
    return JoinedConfig(found, tuple(folders))


def companion_folder(named: str, beside: Path = Path()) -> Path:
    """The folder of a companion; a relative path begins at ``beside``. Raises :class:`CheckpointError`."""
    path = beside / Path(named).expanduser()
    if (path / "config.json").is_file():
        return path
    import huggingface_hub  # late: it takes a tenth of a second
    from huggingface_hub import errors

    try:
        path = Path(huggingface_hub.snapshot_download(named, local_files_only=True, allow_patterns=["config.json"]))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError) as error:
        raise CheckpointError(
            f"{named}, the part of the model that its config.json names, is neither a folder nor in the cache of "
            "Hugging Face: name the model as OWNER/NAME, which fetches both."
        ) from error
    return path
