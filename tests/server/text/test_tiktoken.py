"""Files of words by rank as our tokenizers, beside a plain definition of how tiktoken merges."""

import base64
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]

from stentor.server.text.errors import TokenizerError
from stentor.server.text.tokenizers.loading import has_tokenizer, load_tokenizer
from stentor.server.text.tokenizers.tiktoken import tiktoken_file

HAN = r"[\p{Han}]+"
UPPER, LOWER = r"[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]", r"[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = regex.compile(
    rf"(?V1){HAN}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
OF_QWEN, OF_GLM = (
    regex.compile(rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}{REST}")
    for digits in (r"\p{N}", r"\p{N}{1,3}")
)
TEXTS = (
    *("Hello world", "中文English混合", "北京市 Pascal", "1234567890", "it's THEIRS, isn't it?\r\n\n  yes"),
    *("  \t x", "é日ü", "don't stop;  (really)\n", "ABCdef GHI", "\u00a0…—!!", "🙂🙃"),
)
NAMES = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 5: "<|media_pad|>"}


def words_of(texts: tuple[str, ...], seed: int = 1) -> list[bytes]:
    """All bytes, and parts of the texts' words that are pairs of earlier ones."""
    draw = random.Random(seed)
    words = [bytes([byte]) for byte in range(256)]
    known = set(words)
    for _ in range(200):
        parts = encoded_words(draw.choice(PATTERN.findall(draw.choice(texts))).encode(), words)
        pairs = [a + b for a, b in pairwise(words[part] for part in parts)]
        new = sorted({pair for pair in pairs if pair not in known})
        if new:
            words.append(draw.choice(new))
            known.add(words[-1])
    return words


def encoded_words(piece: bytes, words: list[bytes]) -> list[int]:
    ranks = {word: rank for rank, word in enumerate(words)}
    if piece in ranks:
        return [ranks[piece]]
    parts = [bytes([byte]) for byte in piece]
    while True:
        found = [(ranks[a + b], place) for place, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not found:
            return [ranks[part] for part in parts]
        _, place = min(found)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def write(folder: Path, words: list[bytes]) -> dict[str, int]:
    lines = [f"{base64.b64encode(word).decode()} {rank}\n" for rank, word in enumerate(words)]
    (folder / "tiktoken.model").write_text("".join(lines))
    added: dict[str, Any] = {
        str(len(words) + place): {"content": text, "special": True, "normalized": False}
        for place, text in NAMES.items()
    }
    config = {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return {text: len(words) + place for place, text in NAMES.items()}


def test_texts_are_cut_and_merged_as_tiktoken_does(tmp_path: Path) -> None:
    words = words_of(TEXTS)
    ids = write(tmp_path, words)
    assert has_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == len(words) + 256
    for text in TEXTS:
        expected = [id for piece in PATTERN.findall(text) for id in encoded_words(piece.encode(), words)]
        assert tokenizer.encode(text) == expected, text
        assert tokenizer.decode(expected) == text
    named = "".join(ids)
    assert tokenizer.encode(named) == [*ids.values()]
    assert tokenizer.encode(f"<|reserved_token_{len(words) + 3}|>") == [len(words) + 3]
    assert tokenizer.decode([*ids.values()], skip_special_tokens=True) == ""
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("[BOS]", "[EOS]")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("IQ== 1\n", "rank 1 stands where 0 was expected"),
        ("IQ==\n", "not enough values to unpack"),
        ("I 0\n", "Invalid base64"),
        ("IQ== x\n", "invalid literal"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "tiktoken.model").write_text(content)
    with pytest.raises(TokenizerError, match=rf"tiktoken\.model: .*{why}.*Fetch the model again"):
        load_tokenizer(tmp_path)


def test_files_of_qwen_1_are_read_with_tokens_that_only_its_code_names(tmp_path: Path) -> None:
    words = words_of(TEXTS)
    write(tmp_path, words)
    (tmp_path / "tiktoken.model").rename(tmp_path / "qwen.tiktoken")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "QWenTokenizer"}')
    assert has_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    for text in TEXTS:
        expected = [id for piece in OF_QWEN.findall(text) for id in encoded_words(piece.encode(), words)]
        assert tokenizer.encode(text) == expected, text
        assert tokenizer.decode(expected) == text
    named = "<|im_start|>user<|im_end|><|endoftext|><|extra_204|>"
    ids = tokenizer.encode(named)
    assert (ids[0], *ids[-3:]) == tuple(len(words) + place for place in (1, 2, 0, 207))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


def test_files_of_glm_4_are_told_from_those_of_sentencepiece(tmp_path: Path) -> None:
    words = words_of(TEXTS)
    ids = write(tmp_path, words)
    (tmp_path / "tiktoken.model").rename(tmp_path / "tokenizer.model")
    tokenizer = load_tokenizer(tmp_path)
    for text in TEXTS:
        expected = [id for piece in OF_GLM.findall(text) for id in encoded_words(piece.encode(), words)]
        assert tokenizer.encode(text) == expected, text
    assert tokenizer.encode("".join(ids)) == [*ids.values()]
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    assert tiktoken_file(tmp_path) is None
