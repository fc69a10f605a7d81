from stentor.server.text.tokenizers.detokenizer import Detokenizers
from stentor.server.text.tokenizers.loading import number_tokenizer


def test_a_token_is_written_as_its_number() -> None:
    tokenizer = number_tokenizer(1000)
    assert tokenizer.encode("12 7\n999") == [12, 7, 999]
    assert tokenizer.decode([12, 7, 999]) == "12 7 999"


def test_words_that_are_no_tokens_stand_for_the_first() -> None:
    assert number_tokenizer(10).encode("hello 10 9") == [0, 0, 9]


def test_a_stream_of_tokens_is_the_same_text_as_the_whole() -> None:
    tokenizer = number_tokenizer(1000)
    stream = Detokenizers(tokenizer).new(
        skip_special_tokens=True, spaces_between_special_tokens=True, prompt_tail=[5, 6]
    )
    pieces = [stream.push([token]) for token in (3, 14, 159)]
    assert all(pieces[1:])
    assert ("".join(pieces) + stream.finish()).split() == ["3", "14", "159"]
