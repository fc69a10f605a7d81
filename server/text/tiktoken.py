"""Words by rank, as in tiktoken, for the ``tokenizers`` library; and Moonshot's file, ``tiktoken.model``.

Two neighbours are merged while they form a word, lowest rank first. A word that is in the vocabulary is taken whole.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE

from .errors import TokenizerError
from .pieces import byte_alphabet
from .pretokenizers import PRE_TOKENIZERS

TIKTOKEN: Final = "tiktoken.model"
_RESERVED: Final = 256
"""Special tokens behind the words, whether or not they have names."""


def backend_of(
    words: Sequence[bytes], first: int, other: Mapping[int, str], pre_tokenizer: pre_tokenizers.PreTokenizer
) -> Backend:
    """``words`` by rank, whose ids begin at ``first``, and ``other`` tokens by id. Takes seconds with the
    vocabulary of a published model."""
    spelled = byte_alphabet()
    names = ["".join(spelled[byte] for byte in word) for word in words]
    ids = {name: first + rank for rank, name in enumerate(names)} | {text: id for id, text in other.items()}
    backend = Backend(BPE(ids, _merges(names), ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = ByteLevelDecoder()
    return backend


def add_special(backend: Backend, texts: Sequence[str]) -> None:
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts])


def _merges(names: Sequence[str]) -> list[tuple[str, str]]:
    """Merges by the rank of their result, and for one result by the ranks of its halves."""
    ranks = {name: rank for rank, name in enumerate(names)}
    merges: list[tuple[str, str]] = []
    for name in names:
        halves = [(name[:place], name[place:]) for place in range(1, len(name))]
        known = [(left, right) for left, right in halves if left in ranks and right in ranks]
        merges += sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return merges


def load_tiktoken(file: Path, named: Mapping[int, str]) -> Backend:
    """Kimi's: lines of a word in base64 and its rank. ``named``: further tokens by id, of which those that it has no
    name for are reserved. Raises :class:`.errors.TokenizerError`."""
    words: list[bytes] = []
    try:
        for line in file.read_bytes().splitlines():
            word, rank = line.split()
            if int(rank) != len(words):
                raise ValueError(f"rank {int(rank)} stands where {len(words)} was expected")
            words.append(base64.b64decode(word, validate=True))
    except (OSError, ValueError) as error:
        raise TokenizerError(
            f"Cannot read {file}: {error}; expected lines of a word in base64 and its rank. Fetch the model again."
        ) from error
    reserved = range(len(words), len(words) + _RESERVED)
    unnamed = {id: f"<|reserved_token_{id}|>" for id in reserved if id not in named}
    behind = {id: text for id, text in named.items() if id in reserved}
    backend = backend_of(words, 0, unnamed | behind, PRE_TOKENIZERS["kimi-k2"].build())
    add_special(backend, [*unnamed.values()])
    return backend
