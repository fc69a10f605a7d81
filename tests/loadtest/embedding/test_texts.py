"""Texts have the lengths that were asked for, as the model counts them."""

import statistics
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from stentor.engine.loading.download.hub import DEMO_EMBEDDING_MODEL, resolve_model
from stentor.loadtest.embedding.speed import LEAST_TOKENS, MEDIAN_TOKENS, MOST_TOKENS, skewed
from stentor.loadtest.peers.prompts import Words


@pytest.fixture(scope="module")
def model() -> Path:
    return resolve_model(DEMO_EMBEDDING_MODEL)


@pytest.fixture(scope="module")
def words(model: Path) -> Words:
    return Words(model)


def test_every_text_has_its_length_and_another_seed_brings_others(words: Words, model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    lengths = [3, 16, 64, 128] * 5
    made = words.texts(lengths, seed=1)
    assert [len(tokenizer.encode(text).ids) for text in made] == lengths
    assert made == words.texts(lengths, seed=1)
    assert not set(made[3::4]) & set(words.texts(lengths, seed=2))


@pytest.mark.parametrize("length", [0, 2])
def test_a_length_that_cannot_be_is_refused(words: Words, length: int) -> None:
    with pytest.raises(ValueError, match=f"no text of {length} tokens"):
        words.texts([16, length], seed=1)


def test_most_of_a_mixed_set_is_short_and_some_of_it_long() -> None:
    lengths = skewed(4000, seed=1)
    assert (min(lengths), max(lengths)) == (LEAST_TOKENS, MOST_TOKENS)
    assert abs(statistics.median(lengths) - MEDIAN_TOKENS) <= 2
    assert statistics.mean(lengths) > 1.4 * MEDIAN_TOKENS
