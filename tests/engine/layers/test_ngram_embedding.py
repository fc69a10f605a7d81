"""Rows of tables of n-grams."""

import random

import pytest
import torch

from stentor.engine.layers.ngram_embedding import hashed
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.spec.token_input import NGramInputSpec
from stentor.tests.parity import hub_longcat

EOS = 2
SPEC = NGramInputSpec(vocab_size=9, rows=27, before=3, each=2, eos=EOS)


def test_n_grams_end_where_a_text_ends_and_are_shorter_at_its_beginning() -> None:
    rng = random.Random(1)
    tokens = [rng.choice((EOS, 3, 4, 5, 8)) for _ in range(60)]
    before = [[tokens[at - back] if at >= back else -1 for back in (1, 2, 3)] for at in range(len(tokens))]
    found = hashed(torch.tensor(tokens), torch.tensor(before), torch.tensor(SPEC.powers), torch.tensor(SPEC.sizes), EOS)
    lengths = [2, 2, 3, 3, 4, 4]
    for at, row in enumerate(found.tolist()):
        sizes = zip(lengths, SPEC.sizes, strict=True)
        assert row == [hub_longcat.hashed(tokens, at, length, 9, size, EOS) for length, size in sizes]


def test_each_table_has_two_rows_more_than_the_one_before_it() -> None:
    assert SPEC.sizes == (28, 30, 32, 34, 36, 38)
    assert SPEC.shapes(48)["model.ngram_embeddings.embedders.5.weight"] == (38, 8)
    assert SPEC.shapes(48)["model.ngram_embeddings.post_projs.0.weight"] == (48, 8)


def test_embeddings_that_do_not_fit_the_hidden_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="50 dimensions do not divide among 6 embeddings of n-grams"):
        SPEC.check(50)
