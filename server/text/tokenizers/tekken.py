"""Mistral's own tokenizer file (``tekken.json``), as the ``tokenizers`` library's.

It lists words by rank, and special tokens, whose ids come first: a word's id is its rank behind them.
"""

import base64
from pathlib import Path
from typing import Final

import msgspec

from ..errors import TokenizerError
from .gguf_tokenizer import set_ends
from .pretokenizers import PreTokenization
from .tiktoken import add_special, backend_of
from .tokenizer import Tokenizer

TEKKEN: Final = "tekken.json"
_NAMES: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class _Word(msgspec.Struct):
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _Config(msgspec.Struct):
    default_vocab_size: int
    default_num_special_tokens: int
    pattern: str = ""


class TekkenAudio(msgspec.Struct):
    """Settings of a model with streamed audio input."""

    streaming_n_left_pad_tokens: int | None = None
    transcription_delay_ms: float | None = None


class _File(msgspec.Struct):
    """The used fields of the file."""

    config: _Config
    vocab: list[_Word]
    special_tokens: list[_Special] | None = None
    audio: TekkenAudio | None = None


class Tekken:
    """The contents of a ``tekken.json``."""

    def __init__(self, file: Path) -> None:
        """Raises :class:`..errors.TokenizerError`."""
        try:
            found = msgspec.json.decode(file.read_bytes(), type=_File)
            self.first = found.config.default_num_special_tokens
            """Id of the first word."""
            most = max(0, found.config.default_vocab_size - self.first)
            self.words = [base64.b64decode(word.token_bytes, validate=True) for word in found.vocab[:most]]
            """By rank."""
        except (OSError, msgspec.DecodeError, RecursionError, ValueError) as error:
            raise TokenizerError(f"Cannot read {file}: {error}. Fetch the model again.") from error
        self.special = {token.token_str: token.rank for token in found.special_tokens or ()}
        """Ids by their texts."""
        self.audio = found.audio or TekkenAudio()
        self._pattern = found.config.pattern

    def tokenizer(self) -> Tokenizer:
        """Takes seconds with the vocabulary of a published model."""
        filled = {id: f"<SPECIAL_{id}>" for id in range(self.first)} | {id: text for text, id in self.special.items()}
        backend = backend_of(self.words, self.first, filled, PreTokenization((self._pattern,)).build())
        add_special(backend, [*filled.values()])
        set_ends(backend, _NAMES["bos_token"] if _NAMES["bos_token"] in self.special else None, None)
        return Tokenizer(backend, {name: text for name, text in _NAMES.items() if text in self.special})
