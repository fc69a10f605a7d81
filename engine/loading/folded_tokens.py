"""Numbers of tokens that make n-grams (Engram, arXiv:2601.07372): tokens that differ in case, accents or spaces alone
have the same one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .errors import CheckpointError

_FILE: Final = "tokenizer.json"
_SPACE: Final = "\ue000"
"""Stands for a space that is a token's whole text, which would be stripped otherwise."""


def folded_tokens(folder: Path, count: int, expected: int, spare: int) -> Sequence[int]:
    """The number of each of ``count`` tokens of the tokenizer in ``folder``, of ``expected`` numbers in all.

    Tokens that the tokenizer does not have get the number of the token ``spare``. Raises :class:`CheckpointError` if
    there is no tokenizer, or its tokens have another count of numbers: the rows of n-grams would be others.
    """
    import tokenizers  # late: most models have no n-grams

    file = folder / _FILE
    if not file.is_file():
        raise CheckpointError(
            f"{folder} has no {_FILE}, by which the model numbers the tokens of n-grams: fetch the model with it."
        )
    known = tokenizers.Tokenizer.from_file(str(file))
    parts = tokenizers.normalizers
    fold = parts.Sequence(
        [
            *(parts.NFKC(), parts.NFD(), parts.StripAccents(), parts.Lowercase()),
            parts.Replace(tokenizers.Regex(r"[ \t\r\n]+"), " "),
            parts.Replace(tokenizers.Regex(r"^ $"), _SPACE),
            *(parts.Strip(), parts.Replace(_SPACE, " ")),
        ]
    )
    numbers: dict[str, int] = {}
    found = []
    for token in range(min(known.get_vocab_size(), count)):
        text = known.decode([token], skip_special_tokens=False)
        # a part of a character has no text to fold
        name = str(known.id_to_token(token)) if "\ufffd" in text else fold.normalize_str(text) or text
        found.append(numbers.setdefault(name, len(numbers)))
    if len(numbers) != expected or not spare < len(found):
        raise CheckpointError(
            f"The tokens of {file} have {len(numbers)} different numbers in n-grams, expected {expected}, which "
            "engram_compressed_vocab_size of config.json says: fetch the tokenizer that belongs to the model."
        )
    return found + [found[spare]] * (count - len(found))
