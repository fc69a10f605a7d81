"""Where in a text its tokens are from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers, processors

from stentor.server.text.tokenizers.tokenizer import Tokenizer
from stentor.tests.server.text.vocabularies import byte_level, wordpiece


def _backend() -> Backend:
    made = byte_level().backend
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return made


BYTES = Tokenizer(_backend(), {})


@given(st.text(max_size=20), st.integers(0, 20), st.booleans())
def test_the_ranges_of_first_and_of_last_tokens_are_those_of_the_whole(text: str, count: int, from_end: bool) -> None:
    ids = BYTES.encode(text, False)
    whole = BYTES.offsets(text, ids, False)
    assert whole is not None
    assert len(whole) == len(ids)
    assert whole == sorted(whole)
    reached = 0
    for (begin, end), id in zip(whole, ids, strict=True):
        assert begin <= reached <= end > begin
        assert BYTES.token_bytes(id) in text[begin:end].encode()
        reached = end
    assert reached == len(text)
    kept = ids[max(0, len(ids) - count) :] if from_end else ids[:count]
    found = BYTES.offsets(text, kept, False, from_end=from_end)
    assert found == (whole[len(ids) - len(kept) :] if from_end else whole[:count])


@pytest.mark.parametrize("text", ["the a", "<s>the a"])
def test_a_token_that_is_added_has_an_empty_range_and_no_second_bos_is_counted(text: str) -> None:
    backend = _backend()
    bos = backend.token_to_id("<s>")
    assert bos is not None
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", bos)])
    tokenizer = Tokenizer(backend, {"bos_token": "<s>"})
    ids = tokenizer.encode(text)
    assert ids.count(bos) == 1
    found = tokenizer.offsets(text, ids)
    assert found is not None
    assert found[0] == ((0, 3) if text.startswith("<s>") else (0, 0))
    assert "".join(text[begin:end] for begin, end in found) == text
    assert tokenizer.offsets(text, ids[1:], from_end=True) == found[1:]


def test_tokens_that_are_not_those_of_the_text_have_no_ranges() -> None:
    words = wordpiece()
    ids = words.encode("hello, worlding", False)
    assert words.offsets("hello, worlding", ids, False) == [(0, 5), (5, 6), (7, 12), (12, 15)]
    for other in (ids[1:], ids[::-1], [*ids, ids[0]]):
        assert words.offsets("hello, worlding", other, False) is None
