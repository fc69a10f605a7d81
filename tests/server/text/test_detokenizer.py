"""Pieces joined equal the decoding of the whole, for every family, every sequence and every split."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.text.tokenizers.detokenizer import (
    ByteLevelDetokenizer,
    Detokenizers,
    SentencePieceDetokenizer,
    WindowDetokenizer,
)
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.server.text.tokenizers.pieces import byte_alphabet
from stentor.server.text.tokenizers.tokenizer import Tokenizer
from stentor.tests.examples import examples
from stentor.tests.server.text.vocabularies import FAMILIES, byte_level, id_of, sentencepiece, wordpiece

TOKENIZERS = {name: make() for name, make in FAMILIES.items()}
MAKERS = {name: Detokenizers(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def cut(tokens: list[int], cuts: list[int]) -> list[list[int]]:
    """``tokens`` in pieces of the lengths in ``cuts``, then the rest."""
    pieces = []
    for length in cuts:
        pieces.append(tokens[:length])
        tokens = tokens[length:]
    return [*pieces, tokens]


@st.composite
def sequences(draw: st.DrawFn, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    # ids just past the vocabulary belong to models whose matrix is padded
    ids = st.integers(0, tokenizer.vocab_size + 2)
    specials = st.sampled_from(sorted(tokenizer.added_ids))
    tokens = draw(st.lists(st.one_of(ids, ids, ids, specials), max_size=24))
    return tokens, draw(st.lists(st.integers(0, 4), max_size=12))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("skip", "spaces"), [(True, True), (False, True), (False, False)])
def test_pieces_joined_are_the_decoding_of_the_whole(family: str, skip: bool, spaces: bool) -> None:
    tokenizer, maker = TOKENIZERS[family], MAKERS[family]

    @settings(max_examples=examples(12, 750), deadline=None)
    @given(sequences(tokenizer))
    def check(case: tuple[list[int], list[int]]) -> None:
        tokens, cuts = case
        detokenizer = maker.new(skip_special_tokens=skip, spaces_between_special_tokens=spaces)
        pieces = [detokenizer.push(piece) for piece in cut(tokens, cuts)]
        last = detokenizer.finish()
        whole = tokenizer.decode(tokens, skip, spaces)
        assert "".join(pieces) + last == whole
        if "\ufffd" not in whole:
            assert not any("\ufffd" in piece for piece in pieces)

    check()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_continuation_adds_what_the_whole_adds_to_its_prompt(family: str) -> None:
    tokenizer, maker = TOKENIZERS[family], MAKERS[family]
    # a run of bytes that begins in the prompt belongs to neither
    bytes_of_run = range(3, 259) if family.startswith("sentencepiece") else range(0)
    plain = [
        id
        for id in range(tokenizer.vocab_size)
        if tokenizer.token_bytes(id).isascii() and id not in tokenizer.added_ids and id not in bytes_of_run
    ]

    @settings(max_examples=examples(15, 500), deadline=None)
    @given(st.lists(st.sampled_from(plain), min_size=1, max_size=8), sequences(tokenizer))
    def check(tail: list[int], case: tuple[list[int], list[int]]) -> None:
        tokens, cuts = case
        before = tokenizer.decode(tail)
        detokenizer = maker.new(prompt_tail=tail)
        pieces = [detokenizer.push(piece) for piece in cut(tokens, cuts)]
        assert before + "".join(pieces) + detokenizer.finish() == tokenizer.decode(tail + tokens)

    check()


def test_each_family_takes_its_own_path() -> None:
    assert isinstance(MAKERS["byte_level"].new(), ByteLevelDetokenizer)
    assert isinstance(MAKERS["sentencepiece"].new(), SentencePieceDetokenizer)
    assert isinstance(MAKERS["wordpiece"].new(), WindowDetokenizer)


@pytest.mark.parametrize("family", ["byte_level", "byte_level_with_another_step"])
def test_a_character_comes_out_with_its_last_byte(family: str) -> None:
    tokenizer = TOKENIZERS[family]
    detokenizer = Detokenizers(tokenizer).new()
    ids = [id_of(tokenizer, byte_alphabet()[byte]) for byte in "😀".encode()]
    assert tokenizer.decode(ids) == "😀"
    assert [detokenizer.push([id]) for id in ids] == ["", "", "", "😀"]


def test_a_lost_byte_does_not_hold_back_what_follows() -> None:
    detokenizer = Detokenizers(byte_level()).new()
    lead = id_of(TOKENIZERS["byte_level"], "ð")
    letter = id_of(TOKENIZERS["byte_level"], "A")
    assert [detokenizer.push([id]) for id in (lead, letter)] == ["", "\ufffdA"]


def test_a_sentencepiece_text_keeps_its_first_space_only_after_a_prompt() -> None:
    tokenizer = sentencepiece()
    maker = Detokenizers(tokenizer)
    hello = id_of(tokenizer, "▁hello")
    assert maker.new().push([hello]) == "hello"
    assert maker.new(prompt_tail=[hello]).push([hello]) == " hello"
    assert maker.new(prompt_tail=[1]).push([hello]) == "hello"  # a prompt of nothing but BOS is no text


def test_added_tokens_can_stand_without_spaces_between_them() -> None:
    tokenizer = wordpiece()
    ids = [id_of(tokenizer, word) for word in ("hello", "[SEP]", "[SEP]", "world")]
    maker = Detokenizers(tokenizer)
    texts = {}
    for spaces in (True, False):
        detokenizer = maker.new(skip_special_tokens=False, spaces_between_special_tokens=spaces)
        texts[spaces] = "".join([*(detokenizer.push([id]) for id in ids), detokenizer.finish()])
    assert texts == {True: "hello [SEP] [SEP] world", False: "hello [SEP][SEP] world"}


def test_an_id_out_of_range_leaves_nothing_behind() -> None:
    maker = Detokenizers(byte_level())
    detokenizer = maker.new()
    assert detokenizer.push([10**6]) == ""
    assert 10**6 not in maker._bytes[True]


def test_the_demo_models_pieces_joined_are_the_decoding_of_the_whole(demo_gguf: Path) -> None:
    tokenizer = load_tokenizer(demo_gguf)
    maker = Detokenizers(tokenizer)

    @settings(max_examples=examples(30, 750), deadline=None)
    @given(
        st.one_of(
            st.lists(st.integers(0, 49_155), max_size=30),
            st.text(max_size=30).map(lambda text: tokenizer.encode(text)),
        ),
        st.lists(st.integers(0, 4), max_size=12),
        st.booleans(),
    )
    def check(tokens: list[int], cuts: list[int], skip: bool) -> None:
        detokenizer = maker.new(skip_special_tokens=skip)
        pieces = [detokenizer.push(piece) for piece in cut(tokens, cuts)]
        last = detokenizer.finish()
        whole = tokenizer.decode(tokens, skip)
        assert "".join(pieces) + last == whole
        if "\ufffd" not in whole:
            assert not any("\ufffd" in piece for piece in pieces)

    check()
