"""Mistral's own tokenizer file (``tekken.json``), as the ``tokenizers`` library's.

It lists words by rank, and special tokens, whose ids come first: a word's id is its rank behind them. Two neighbours
are merged as long as they make a word, that of the lowest rank first.
"""

import base64
from pathlib import Path
from typing import Final

import msgspec
from tokenizers import AddedToken, Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE

from .errors import TokenizerError
from .gguf_tokenizer import set_ends
from .pieces import byte_alphabet
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
    """What it says of a model that hears while it is spoken to."""

    streaming_n_left_pad_tokens: int | None = None
    transcription_delay_ms: float | None = None


class _File(msgspec.Struct):
    """What matters here."""

    config: _Config
    vocab: list[_Word]
    special_tokens: list[_Special] | None = None
    audio: TekkenAudio | None = None


class Tekken:
    """One that has been read."""

    def __init__(self, file: Path) -> None:
        """Raises :class:`.errors.TokenizerError`."""
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
        """Some seconds for as many words as published models have."""
        spelled = byte_alphabet()
        names = ["".join(spelled[byte] for byte in word) for word in self.words]
        ids = {name: self.first + rank for rank, name in enumerate(names)}
        filled = {id: f"<SPECIAL_{id}>" for id in range(self.first)} | {id: text for text, id in self.special.items()}
        ids |= {text: id for id, text in filled.items()}
        backend = Backend(BPE(ids, self._merges(names), ignore_merges=True))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(self._pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = ByteLevelDecoder()
        backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in filled.values()])
        set_ends(backend, _NAMES["bos_token"] if _NAMES["bos_token"] in self.special else None, None)
        return Tokenizer(backend, {name: text for name, text in _NAMES.items() if text in self.special})

    def _merges(self, names: list[str]) -> list[tuple[str, str]]:
        """By the rank of what they make, and of one word by the ranks of its halves."""
        ranks = {name: rank for rank, name in enumerate(names)}
        merges: list[tuple[str, str]] = []
        for name in names:
            halves = [(name[:place], name[place:]) for place in range(1, len(name))]
            known = [(left, right) for left, right in halves if left in ranks and right in ranks]
            merges += sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        return merges
