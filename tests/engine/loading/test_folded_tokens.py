"""Numbers of tokens in n-grams, by the text of a tokenizer's tokens."""

from pathlib import Path

import pytest
import tokenizers

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.folded_tokens import folded_tokens

TEXTS = (*("The", "the", " THE", "théo", "THEO"), *(" ", "  ", "\n\t"), *("\ufffd", "\ufffda"), *("ﬁ", "fi", "\u00a0"))
"""Tokens, of which those in a row that make one number are: three, two, three; two of none; two; and a space."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tokenizers.models.WordLevel({text: number for number, text in enumerate(TEXTS)}, unk_token="The")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_case_accents_and_spaces_make_no_number_and_parts_of_characters_are_kept_apart(folder: Path) -> None:
    assert folded_tokens(folder, len(TEXTS), 6, 0) == [0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 5, 2]


def test_tokens_that_the_tokenizer_lacks_have_the_spare_one_s_number(folder: Path) -> None:
    assert list(folded_tokens(folder, len(TEXTS) + 2, 6, 3))[-2:] == [1, 1]


def test_another_tokenizer_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="have 6 different numbers in n-grams, expected 7"):
        folded_tokens(folder, len(TEXTS), 7, 0)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json, by which the model numbers"):
        folded_tokens(tmp_path, 4, 4, 0)
