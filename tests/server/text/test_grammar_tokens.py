"""Which tokens an engine is told of, and which of them no text of a grammar matches."""

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from stentor.engine.core.grammar.vocabulary import VocabularyReader
from stentor.server.text.tokenizers.grammar_tokens import special_tokens_of, vocabulary_of
from stentor.server.text.tokenizers.tokenizer import Tokenizer
from stentor.tests.server.text.vocabularies import id_of, metaspace


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = Backend(BPE({"a": 0, "Ġ": 1, "Ã": 2, "©": 3, "é": 7}, []))
    backend.decoder = ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    backend.add_tokens([AddedToken("</think>", special=False), AddedToken("  ", special=False)])
    return Tokenizer(backend, {"eos_token": "<eos>"})


def test_markers_are_named_by_id_alone_and_white_space_is_text(tokenizer: Tokenizer) -> None:
    ids = {text: tokenizer.backend.token_to_id(text) for text in ("<eos>", "</think>", "  ")}
    assert dict(special_tokens_of(tokenizer)) == {text: ids[text] for text in ("<eos>", "</think>")}


def test_a_token_of_a_metaspace_tokenizer_keeps_its_space() -> None:
    spaced = metaspace()
    assert [spaced.token_bytes(id_of(spaced, token)) for token in ("▁the", "llo", "▁▁", "</s>")] == [
        *(b" the", b"llo", b"  ", b"</s>")
    ]


@pytest.mark.parametrize("eos", [(), (0, 3)])
def test_every_token_has_its_bytes_at_its_id(tokenizer: Tokenizer, eos: tuple[int, ...]) -> None:
    reader = VocabularyReader()
    (whole,) = [found for piece in vocabulary_of(tokenizer, eos) if (found := reader.take(piece)) is not None]
    highest = max(tokenizer.backend.get_vocab(with_added_tokens=True).values())
    assert whole.tokens == [tokenizer.token_bytes(id) for id in range(highest + 1)]
    assert whole.tokens[:4] == [b"a", b" ", b"\xc3", b"\xa9"]
    assert whole.tokens[4] == b"", "nobody has this id"
    added = tokenizer.backend.get_vocab(with_added_tokens=True)
    ids = [added[text] for text in ("<eos>", "</think>")]
    assert whole.special == sorted(ids)
    assert whole.eos == (list(eos) or ids[:1])
