"""Tokenizers from the metadata of GGUF files.

Two kinds of vocabulary are read: ``gpt2`` (byte-level BPE, merges in the file) and ``llama``
(SentencePiece with byte fallback, merges recovered from the scores); ``gemma4`` is one of the latter with merges.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.gguf.file import GGUFFile

from ..errors import TokenizerError
from .pretokenizers import PRE_TOKENIZERS
from .tokenizer import ChatTemplates, Tokenizer

_PREFIX: Final = "tokenizer.ggml."
_TEMPLATE: Final = "tokenizer.chat_template"
_SPECIAL_KEYS: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "prefix_token": "fim_pre_token_id",
    "suffix_token": "fim_suf_token_id",
    "middle_token": "fim_mid_token_id",
}
_SENTENCEPIECE_IDS: Final = {"bos_token": 1, "eos_token": 2, "unk_token": 0}
"""Default ids of a SentencePiece file."""


class TokenType(IntEnum):
    """The type of a token (``tokenizer.ggml.token_type``)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class _Vocabulary(msgspec.Struct):
    """The tokenizer's metadata of one file."""

    model: str
    architecture: str
    metadata: Mapping[str, object]
    tokens: list[str]
    types: list[int]
    special: dict[str, str] = msgspec.field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(_PREFIX + key, default)

    @property
    def ids(self) -> dict[str, int]:
        return {token: place for place, token in enumerate(self.tokens)}


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer and the chat templates that a ``.gguf`` file holds. Raises :class:`TokenizerError`."""
    try:
        with GGUFFile(path) as file:
            vocabulary = _read(path, file.metadata)
            return Tokenizer(_build(vocabulary), vocabulary.special, _templates(file.metadata))
    except CheckpointError as error:
        raise TokenizerError(str(error)) from error
    except TokenizerError as error:
        raise TokenizerError(f"Cannot take the tokenizer from {path}: {error}") from error
    except Exception as error:  # the library raises plain Exception for merges that name no token
        raise TokenizerError(
            f"Cannot take the tokenizer from {path}: {error}. Name a folder with the model's tokenizer (--tokenizer)."
        ) from error


def _read(path: Path, metadata: Mapping[str, object]) -> _Vocabulary:
    model = metadata.get(_PREFIX + "model")
    if model not in ("gpt2", "llama", "gemma4"):
        found = f"it has a {model!r} tokenizer" if model else "it holds none"
        raise TokenizerError(
            f"{found}, expected 'gpt2', 'llama' or 'gemma4'. Name a folder with the model's tokenizer (--tokenizer)."
        )
    tokens = metadata.get(_PREFIX + "tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise TokenizerError("it holds no list of tokens; convert the model again.")
    types = metadata.get(_PREFIX + "token_type") or [TokenType.NORMAL] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise TokenizerError(f"it has {len(tokens)} tokens, but not as many token types; convert the model again.")
    architecture = str(metadata.get("general.architecture", ""))
    vocabulary = _Vocabulary(str(model), architecture, metadata, _distinct(tokens), types)
    defaults = {} if model == "gpt2" else _SENTENCEPIECE_IDS
    for name, key in _SPECIAL_KEYS.items():
        id = vocabulary.get(key, defaults.get(name))
        if isinstance(id, int) and 0 <= id < len(tokens):
            vocabulary.special[name] = vocabulary.tokens[id]
    return vocabulary


def _distinct(tokens: list[str]) -> list[str]:
    """Tokens with unique texts, so that ids and tokens correspond one to one."""
    if len(set(tokens)) == len(tokens) and "" not in tokens:
        return tokens
    seen: set[str] = set()
    distinct = []
    for place, token in enumerate(tokens):
        unique = token if token and token not in seen else f"[UNUSED_{place}]"
        seen.add(unique)
        distinct.append(unique)
    return distinct


def _build(vocabulary: _Vocabulary) -> Backend:
    backend = _byte_level(vocabulary) if vocabulary.model == "gpt2" else _sentencepiece(vocabulary)
    _add_tokens(backend, vocabulary)
    _add_ends(backend, vocabulary)
    return backend


def _byte_level(vocabulary: _Vocabulary) -> Backend:
    family = _family(vocabulary)
    merges = [_cut(merge) for merge in vocabulary.get("merges", [])]
    if not merges:
        raise TokenizerError("it holds no merges; convert the model again.")
    backend = Backend(BPE(vocabulary.ids, merges, ignore_merges=PRE_TOKENIZERS[family].ignore_merges))
    if PRE_TOKENIZERS[family].nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[family].build()
    backend.decoder = decoders.ByteLevel()
    return backend


def _family(vocabulary: _Vocabulary) -> str:
    name = str(vocabulary.get("pre", "default"))
    if name not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"it cuts text the {name!r} way, which is not known here. "
            "Name a folder with the model's tokenizer (--tokenizer)."
        )
    return name


def _cut(merge: str) -> tuple[str, str]:
    # a merge's first half may itself be a space
    at = merge.find(" ", 1)
    return merge[:at], merge[at + 1 :]


def _sentencepiece(vocabulary: _Vocabulary) -> Backend:
    gemma = vocabulary.architecture.startswith("gemma")
    if gemma:
        # its runs of spaces are stored as spaces, but are looked up as the text spells them
        vocabulary.tokens = [
            "▁" * len(token) if token.isspace() and not token.strip(" ") else token for token in vocabulary.tokens
        ]
    merges = [_cut(merge) for merge in vocabulary.get("merges", [])]
    unknown = vocabulary.special.get("unk_token")
    backend = Backend(
        BPE(
            vocabulary.ids,
            merges or _merges_from_scores(vocabulary, _scores(vocabulary, in_order=gemma)),
            fuse_unk=True,
            byte_fallback=True,
            unk_token=unknown,
        )
    )
    adds_space = bool(vocabulary.get("add_space_prefix", not gemma))
    if vocabulary.architecture == "phi3" and adds_space:
        # here the space is part of the text, so an existing space does not replace it
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement="▁", prepend_scheme="first" if adds_space else "never", split=False
        )
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _scores(vocabulary: _Vocabulary, *, in_order: bool) -> Sequence[float]:
    """The higher, the earlier a token is put together. Gemma's order is that of its tokens."""
    count = len(vocabulary.tokens)
    scores = vocabulary.get("scores")
    if in_order or not scores:
        return range(0, -count, -1)
    if not isinstance(scores, list) or len(scores) != count:
        raise TokenizerError(f"it has {count} tokens, but not as many scores; convert the model again.")
    return scores


def _merges_from_scores(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, the best token first.

    Among the ways to one token, those with the longer left half come first; tokens that text is
    never cut into take no part.
    """
    ids = vocabulary.ids
    apart = {TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE, TokenType.UNUSED}
    whole = {token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind not in apart}
    found: list[tuple[float, int, int, str, str]] = []
    for token in whole:
        score = scores[ids[token]]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in whole and right in whole:
                found.append((-score, -cut, ids[token], left, right))
    found.sort()
    return [(left, right) for _, _, _, left, right in found]


def _add_tokens(backend: Backend, vocabulary: _Vocabulary) -> None:
    """Control tokens are special; user-defined ones are matched whole in text, but are text."""
    named = set(vocabulary.special.values())
    special, plain = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind == TokenType.CONTROL or token in named:
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == TokenType.USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def _add_ends(backend: Backend, vocabulary: _Vocabulary) -> None:
    """Adds BOS and EOS to a text, as the model requires."""
    sentencepiece = vocabulary.model != "gpt2"
    wants_bos = sentencepiece or PRE_TOKENIZERS[_family(vocabulary)].adds_bos
    bos = vocabulary.special.get("bos_token") if vocabulary.get("add_bos_token", wants_bos) else None
    eos = vocabulary.special.get("eos_token") if vocabulary.get("add_eos_token", False) else None
    set_ends(backend, bos, eos)


def set_ends(backend: Backend, bos: str | None, eos: str | None) -> None:
    """Makes ``backend`` add these tokens before and after a text; None adds none."""
    ends = [token for token in dict.fromkeys((bos, eos)) if token is not None]
    single = ([f"{bos}:0"] if bos else []) + ["$A:0"] + ([f"{eos}:0"] if eos else [])
    pair = single + ([f"{bos}:1"] if bos else []) + ["$B:1"] + ([f"{eos}:1"] if eos else [])
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(token, backend.token_to_id(token)) for token in ends]
    )


def _templates(metadata: Mapping[str, object]) -> ChatTemplates:
    """The default template, and those that the file holds under names."""
    named = {
        key.removeprefix(_TEMPLATE + "."): str(metadata[key]) for key in metadata if key.startswith(_TEMPLATE + ".")
    }
    default = metadata.get(_TEMPLATE)
    if not named:
        return default if isinstance(default, str) else None
    return {"default": default, **named} if isinstance(default, str) else named
