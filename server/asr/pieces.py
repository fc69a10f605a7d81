"""The tokenizer of a Speech2Text: pieces with their numbers in ``vocab.json``, of which texts are only read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json

from ..text.tokenizers.tokenizer import Tokenizer
from .letters import checked_pieces, token_settings, token_text

_FILE: Final = "vocab.json"
_EXTRACTOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")
_NAMES: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_EXPECTED: Final[Mapping[str, object]] = {
    "sampling_rate": 16_000,
    "do_ceptral_normalize": True,
    "normalize_means": True,
    "normalize_vars": True,
    "dither": 0.0,
}
"""The only features that are computed."""


def pieces_of(folder: Path) -> Tokenizer:
    """Raises :class:`CheckpointError`, also for features that are not computed."""
    file, settings = folder / _FILE, token_settings(folder)
    if not file.is_file():
        raise CheckpointError(f"There is no {_FILE} in {folder}, which has its tokens. Fetch the model again.")
    _check_features(folder)
    pieces = checked_pieces(read_json(file), file)
    special = {name: token_text(settings.get(name), default) for name, default in _NAMES.items()}
    special |= {f"language {piece}": piece for piece in pieces if piece.startswith("<lang:")}
    if settings.get("do_upper_case") is True:
        upper = {piece if piece in special.values() else piece.upper(): id for piece, id in pieces.items()}
        if len(upper) < len(pieces):
            raise CheckpointError(f"{file}: some pieces differ in capitals alone, and do_upper_case makes them equal.")
        pieces = upper
    backend = Backend(WordLevel(pieces, special["unk_token"]))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    known = {name: text for name, text in special.items() if text in pieces}
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in known.values()])
    return Tokenizer(backend, {name: text for name, text in known.items() if name in _NAMES})


def _check_features(folder: Path) -> None:
    file = next((folder / name for name in _EXTRACTOR_FILES if (folder / name).is_file()), None)
    found: Mapping[str, object] = {} if file is None else read_json(file)
    inner = found.get("feature_extractor", found)
    for name, expected in _EXPECTED.items():
        value = inner.get(name, expected) if isinstance(inner, Mapping) else expected
        if value != expected:
            raise CheckpointError(f"{file}: {name} is {value}, expected {expected}: no other features are computed.")
