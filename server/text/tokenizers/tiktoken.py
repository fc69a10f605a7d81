"""Words by rank, as in tiktoken, for the ``tokenizers`` library; and the files of Moonshot (``tiktoken.model``), Qwen 1
(``qwen.tiktoken``) and GLM-4-9b (``tokenizer.model``).

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
from tokenizers.normalizers import NFC

from ..errors import TokenizerError
from .pieces import byte_alphabet
from .pretokenizers import PRE_TOKENIZERS

_FAMILIES: Final = {"tiktoken.model": "kimi-k2", "qwen.tiktoken": "qwen2", "tokenizer.model": "glm4"}
"""How text is cut, by name of the file."""
_FIRST_LINE: Final = 256
"""Bytes that the first line of such a file has at most."""
_RESERVED: Final = 256
"""Kimi's special tokens behind the words, whether or not they have names."""
_QWEN: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
"""Qwen 1's special tokens, which no file names."""


def tiktoken_file(folder: Path) -> Path | None:
    """The file of words by rank in a model's folder, if there is one. Other models have a tokenizer of SentencePiece
    under the name of GLM-4's."""
    found = next((folder / name for name in _FAMILIES if (folder / name).is_file()), None)
    if found is None or found.name != "tokenizer.model":
        return found
    try:
        with found.open("rb") as file:
            word, _, rank = file.read(_FIRST_LINE).partition(b"\n")[0].partition(b" ")
            return found if rank == b"0" and base64.b64decode(word, validate=True) else None
    except (OSError, ValueError):
        return None


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
    """Of lines with a word in base64 and its rank. ``named``: further tokens by id, of which Kimi's that it has no name
    for are reserved. Raises :class:`..errors.TokenizerError`."""
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
    first, family, unnamed = len(words), PRE_TOKENIZERS[_FAMILIES[file.name]], dict[int, str]()
    behind = {id: text for id, text in named.items() if id >= first}
    match file.name:
        case "tiktoken.model":
            reserved = range(first, first + _RESERVED)
            unnamed = {id: f"<|reserved_token_{id}|>" for id in reserved if id not in named}
            behind = {id: text for id, text in behind.items() if id in reserved}
        case "qwen.tiktoken":
            unnamed, behind = dict(enumerate(_QWEN, first)), {}
    backend = backend_of(words, 0, unnamed | behind, family.build())
    if family.nfc:
        backend.normalizer = NFC()
    add_special(backend, [*unnamed.values()])
    return backend
