"""Small tokenizers: a word-level one in a folder, as the prompts read it, and one in a ``.gguf`` file."""

from pathlib import Path

import gguf
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


def write_gguf_vocabulary(path: Path) -> Path:
    """A file with a tokenizer of 29 pieces, and nothing else that counts."""
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz"])
    writer.add_token_types([3] * 3 + [1] * 26)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
