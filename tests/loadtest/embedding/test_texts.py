"""Texts have the lengths that were asked for, as the model counts them."""

import statistics

import pytest

from stentor.engine.loading.hub import DEMO_EMBEDDING_MODEL, resolve_model
from stentor.loadtest.embedding.texts import LEAST_TOKENS, MEDIAN_TOKENS, MOST_TOKENS, Texts, skewed


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts(resolve_model(DEMO_EMBEDDING_MODEL))


def test_every_text_has_its_length_and_another_seed_brings_others(texts: Texts) -> None:
    lengths = [3, 16, 64, 256] * 5
    made = texts.of(lengths, seed=1)
    assert [texts.count(text) for text in made] == lengths
    assert made == texts.of(lengths, seed=1)
    assert not set(made[3::4]) & set(texts.of(lengths, seed=2))


@pytest.mark.parametrize("length", [0, 2, 1_000_000])
def test_a_length_that_cannot_be_is_refused(texts: Texts, length: int) -> None:
    with pytest.raises(ValueError, match=f"no text of {length} tokens"):
        texts.of([length], seed=1)


def test_most_of_a_mixed_set_is_short_and_some_of_it_long() -> None:
    lengths = skewed(4000, seed=1)
    assert (min(lengths), max(lengths)) == (LEAST_TOKENS, MOST_TOKENS)
    assert abs(statistics.median(lengths) - MEDIAN_TOKENS) <= 2
    assert statistics.mean(lengths) > 1.4 * MEDIAN_TOKENS
