"""What a config.json leaves to other files: parts in other repositories (Ultravox's files name their decoder, but do
not contain it, and those of voices their codec), and placeholders of pictures that only the tokenizer numbers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from .errors import CheckpointError
from .safetensors_index import read_json

_PARTS: Final[Mapping[str, str]] = {"text_model_id": "text_config", "audio_model_id": "audio_config"}
"""Fields that name another model, and fields that hold its config.json."""
_WITH_CODECS: Final = frozenset({"pocket_tts", "gradium_phonon_tts", "dia", "higgs_audio_v2"})
"""``model_type`` of voices whose codec is a model of its own."""
_VOCODERS: Final[Mapping[object, str]] = {"speecht5": "microsoft/speecht5_hifigan"}
"""The makers' vocoder by ``model_type`` of voices whose files name none."""
_VOCODER: Final = "vocoder"
"""A folder within a checkpoint, with another vocoder."""
_PROCESSORS: Final = ("processor_config.json", "audio_tokenizer_config.json")
"""Files that name the codec; the second is older."""
_TOKENIZER: Final = ("added_tokens.json", "tokenizer_config.json", "tokenizer.json")


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
    """The codec of a checkpoint of voices: a folder, perhaps within it, or a repository; None for other models.

    Raises :class:`CheckpointError`.
    """
    config = folder / "config.json"
    kind = read_json(config).get("model_type") if config.is_file() else None
    if kind in _VOCODERS:
        return _VOCODER if (folder / _VOCODER).is_dir() else _VOCODERS[kind]
    if kind not in _WITH_CODECS:
        return None
    described = (read_json(file) for name in _PROCESSORS if (file := folder / name).is_file())
    for found in described:
        codec = found.get("audio_tokenizer", found)
        named = codec.get("audio_tokenizer_name_or_path") if isinstance(codec, Mapping) else None
        if isinstance(named, str) and named:
            return named
    return None


def require_voice_codec(folder: Path) -> str:
    """As :func:`voice_codec`, of a checkpoint that needs one. Raises :class:`CheckpointError`."""
    if (named := voice_codec(folder)) is None:
        raise CheckpointError(
            f"{folder} names no codec: no {' or '.join(_PROCESSORS)} with an audio_tokenizer_name_or_path; fetch it "
            "again"
        )
    return named


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


def described_model(folder: Path, config: Mapping[str, object]) -> Mapping[str, object]:
    """The multimodal model in a config.json, with the placeholder of its pictures or sounds if the tokenizer's files
    beside it have one. Raises :class:`CheckpointError`."""
    from ..model_config.hf.text_part import described_part  # late: the command knows no architecture yet
    from ..model_config.towers.media_spec import unnamed_token

    described = described_part(config)
    if (wanted := unnamed_token(described)) is None:
        return described
    field, spelled = wanted
    found = next((id for text, id in _added(folder) if text == spelled), None)
    return described if found is None else {**described, field: found}


def _added(folder: Path) -> Iterator[tuple[object, int]]:
    """Text and id of tokens that a tokenizer adds to its vocabulary."""
    for name in _TOKENIZER:
        if not (folder / name).is_file():
            continue
        found = read_json(folder / name)
        yield from ((text, id) for text, id in found.items() if isinstance(id, int))
        decoder, listed = found.get("added_tokens_decoder"), found.get("added_tokens")
        if isinstance(decoder, Mapping):
            for number, each in decoder.items():
                if isinstance(each, Mapping) and isinstance(number, str) and number.isdecimal():
                    yield each.get("content"), int(number)
        if isinstance(listed, list):
            for each in listed:
                if isinstance(each, Mapping) and isinstance(id := each.get("id"), int):
                    yield each.get("content"), id
