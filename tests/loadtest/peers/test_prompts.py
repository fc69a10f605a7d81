"""Prompts of exactly as many tokens as asked for, in both forms, and the same for one seed."""

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from stentor.loadtest.peers.prompts import Words
from stentor.loadtest.peers.weights import WeightsError
from stentor.tests.loadtest.peers.vocabulary import write_tokenizer


def test_text_and_ids_are_the_same_tokens(tmp_path: Path) -> None:
    words = Words(write_tokenizer(tmp_path, 400))
    prompt = words.prompt(50, random.Random(1))
    assert len(prompt.ids) == 50
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(prompt.text).ids == prompt.ids
    assert not {0, 1} & set(prompt.ids)


def test_a_seed_means_the_same_prompts_and_another_seed_others(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 400)
    one, same, other = (Words(tmp_path).prompt(20, random.Random(seed)) for seed in ("a", "a", "b"))
    assert one == same
    assert one.ids[:3] != other.ids[:3]


def test_a_vocabulary_with_hardly_a_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="has 40 words of one token, expected at least 256"):
        Words(write_tokenizer(tmp_path, 40))
