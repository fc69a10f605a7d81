"""A word-level tokenizer in a folder, as the prompts read it."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

LETTERS = "abcdefghijklmnopqrst"


def write_tokenizer(folder: Path, words: int) -> Path:
    """``words`` words of three letters with their leading space, and two tokens that are no words."""
    vocabulary = {"<unk>": 0, "ĠNot9": 1}
    for number in range(words):
        letters = "".join(LETTERS[number // 20**place % 20] for place in range(3))
        vocabulary[f"Ġ{letters}"] = len(vocabulary)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
