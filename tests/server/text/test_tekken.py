"""Mistral's tokenizer file as ours: token by token as its makers' library reads it."""

from pathlib import Path

import pytest

from stentor.server.text.errors import TokenizerError
from stentor.server.text.tokenizers.loading import has_tokenizer, load_tokenizer
from stentor.tests.support.audio_models import voxtral

mistral_common = pytest.importorskip("mistral_common")

TEXTS = ("lang:en", "the lang  xaxa\n\n the", "Ünïcode 日本 12345\r\n", "", " ", "[INST] a")


def test_texts_are_encoded_as_by_the_library(tmp_path: Path) -> None:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    voxtral(tmp_path)
    assert has_tokenizer(tmp_path)
    tokenizer, theirs = load_tokenizer(tmp_path), Tekkenizer.from_file(tmp_path / "tekken.json")
    assert tokenizer.vocab_size == theirs.n_words
    for text in TEXTS[:-1]:
        assert tokenizer.encode(text, False) == theirs.encode(text, bos=False, eos=False), text
        assert tokenizer.encode(text) == theirs.encode(text, bos=True, eos=False), text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("[INST][AUDIO]</s>", False) == [3, 24, 2]
    assert tokenizer.special_tokens["eos_token"] == "</s>"
    assert set(range(40)) == tokenizer.special_ids


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text('{"config": {}}')
    with pytest.raises(TokenizerError, match=r"tekken\.json: .*Fetch the model again"):
        load_tokenizer(tmp_path)
