"""Placeholders of pictures that only a model's tokenizer numbers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ..model_config.hf.text_part import described_part
from ..model_config.towers.media_spec import PICTURE_TOKENS, names_picture
from .safetensors_index import read_json

_FILES: Final = ("added_tokens.json", "tokenizer_config.json", "tokenizer.json")


def described_model(folder: Path, config: Mapping[str, object]) -> Mapping[str, object]:
    """The multimodal model in a config.json, with the placeholder of its pictures if the tokenizer's files beside it
    have one. Raises :class:`.errors.CheckpointError`."""
    described = described_part(config)
    wanted = PICTURE_TOKENS.get(described.get("model_type"))
    if wanted is None or names_picture(described):
        return described
    found = next((id for text, id in _added(folder) if text == wanted), None)
    return described if found is None else {**described, "image_token_id": found}


def _added(folder: Path) -> Iterator[tuple[object, int]]:
    """Text and id of tokens that a tokenizer adds to its vocabulary."""
    for name in _FILES:
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
