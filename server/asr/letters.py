"""Reads the vocabulary of wav2vec 2.0 and its relatives: letters by number, one of which stands between words.

transformers' class for it (``Wav2Vec2CTCTokenizer``) has no file of the ``tokenizers`` library.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json

from ..text.tokenizer import Tokenizer

_FILE: Final = "vocab.json"
_MOST_PIECES: Final = 1 << 20
SPACE: Final = "▁"
_NAMES: Final[Mapping[str, str]] = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}
"""Of special tokens, with their texts where the files name none."""
_OF_PHONEMES: Final = "Wav2Vec2PhonemeCTCTokenizer"


def has_letters(folder: Path) -> bool:
    """Whether ``folder`` has such a vocabulary, and no other."""
    return (folder / _FILE).is_file() and not (folder / "tokenizer.json").is_file()


def letters_of(folder: Path) -> Tokenizer:
    """For a folder for which :func:`has_letters` is true; :data:`SPACE` is the token between words. Raises
    :class:`CheckpointError`."""
    file, settings = folder / _FILE, _settings(folder)
    found: object = read_json(file)
    if isinstance(language := settings.get("target_lang"), str) and isinstance(found, dict):  # of MMS
        found = found.get(language)
    pieces = _checked(found, file)
    if settings.get("tokenizer_class") == _OF_PHONEMES:
        raise CheckpointError(
            f"The tokens of {folder} are phonemes ({_OF_PHONEMES}), expected letters: choose a model that writes text."
        )
    special = {name: _text(settings.get(name), default) for name, default in _NAMES.items()}
    if settings.get("do_lower_case") is True:
        pieces = _lowered(pieces, {*special.values()})
    space = _text(settings.get("word_delimiter_token"), "|")
    if space in pieces:
        pieces[SPACE] = pieces.pop(space)
    backend = Backend(BPE(pieces, []))
    backend.pre_tokenizer = Metaspace()
    backend.decoder = decoders.Metaspace()
    named = {name: text for name, text in special.items() if text in pieces}
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in named.values()])
    return Tokenizer(backend, named)


def _checked(found: object, file: Path) -> dict[str, int]:
    found = found if isinstance(found, dict) else {}
    pieces = {piece: id for piece, id in found.items() if isinstance(id, int) and not isinstance(id, bool)}
    if len(pieces) < len(found) or not 0 < len(pieces) <= _MOST_PIECES or len({*pieces.values()}) < len(pieces):
        raise CheckpointError(f"{file}: expected an object of at most {_MOST_PIECES} letters, each with its number.")
    if min(pieces.values()) < 0 or max(pieces.values()) >= _MOST_PIECES:
        raise CheckpointError(f"{file}: expected numbers from 0 to {_MOST_PIECES - 1}.")
    return pieces


def _lowered(pieces: Mapping[str, int], special: Collection[str]) -> dict[str, int]:
    """Capitals as small letters, where the vocabulary has none of those."""
    return {piece if piece in special or piece.lower() in pieces else piece.lower(): id for piece, id in pieces.items()}


def _settings(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            found |= read_json(folder / name)
    return found


def _text(value: object, default: str) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else default
