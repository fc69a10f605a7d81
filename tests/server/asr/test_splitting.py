"""Words of tokens."""

from hypothesis import given
from hypothesis import strategies as st

from stentor.protocols.ipc.audio import AlignmentOutput
from stentor.server.asr.segments import Part
from stentor.server.asr.splitting import split_words
from stentor.server.asr.words import (
    TimedWord,
    give_to_parts,
    merge_punctuation,
    pace_of,
    shorten_at_sentences,
    timed_words,
)
from stentor.tests.server.asr.scripted import VOCABULARY


def words_of(text: str, language: str = "en") -> list[str]:
    return [word.text for word in split_words(VOCABULARY, VOCABULARY.encode(text), language)]


def timed(*words: tuple[str, float, float]) -> list[TimedWord]:
    return [TimedWord(text, VOCABULARY.encode(text), start, end, 0.5) for text, start, end in words]


def test_words_begin_with_their_space_and_punctuation_stands_alone() -> None:
    assert words_of(' He said, "go."') == [" He", " said", ",", " ", '"go', ".", '"']


def test_characters_of_several_tokens_stay_whole() -> None:
    assert words_of(" Größe über") == [" Größe", " über"]
    assert words_of("東京へ", "ja") == ["東", "京", "へ"]


def test_half_a_character_at_the_end_is_a_word_of_its_own() -> None:
    tokens = [*VOCABULARY.encode(" ja"), *"é".encode()[:1]]
    words = split_words(VOCABULARY, tokens, "ja")
    assert [token for word in words for token in word.tokens] == tokens


def test_what_is_no_character_in_the_whole_text_does_not_hold_up_what_follows() -> None:
    tokens = [*VOCABULARY.encode("a"), 255, *VOCABULARY.encode("bc")]
    assert "\N{REPLACEMENT CHARACTER}" in VOCABULARY.decode(tokens)
    assert len(split_words(VOCABULARY, tokens, "ja")) > 2


@given(st.lists(st.integers(0, 255), max_size=40), st.sampled_from(["en", "ja"]))
def test_every_token_is_in_exactly_one_word(tokens: list[int], language: str) -> None:
    words = split_words(VOCABULARY, tokens, language)
    assert [token for word in words for token in word.tokens] == tokens


def test_marks_go_to_the_words_that_they_stand_at() -> None:
    words = timed((" he", 0, 1), (' "', 1, 1.1), ("go", 1.1, 2), (",", 2, 2.1), ('"', 2.1, 2.2), (" now", 2.2, 3))
    merge_punctuation(words)
    assert [word.text for word in words if word.text] == [" he", ' "go,"', " now"]
    assert sum(len(word.tokens) for word in words) == len(VOCABULARY.encode(' he "go," now'))


def test_a_word_lasts_until_the_next_one_begins() -> None:
    words = split_words(VOCABULARY, VOCABULARY.encode(" ab cd"), "en")
    found = timed_words(
        words, AlignmentOutput(None, [0.1, 0.2, 0.3, 0.8, 0.9, 1.0, 1.5], [1.0, 0.5, 0.0, 1.0, 1.0, 1.0])
    )
    assert [(word.text, word.start, word.end, word.probability) for word in found] == [
        (" ab", 0.1, 0.8, 0.5),
        (" cd", 0.8, 1.5, 1.0),
    ]


def test_a_model_that_cannot_align_has_no_words() -> None:
    assert timed_words(split_words(VOCABULARY, VOCABULARY.encode(" ab"), "en"), AlignmentOutput()) == []


def test_words_do_not_run_through_the_pause_between_sentences() -> None:
    words = timed((" a", 0, 0.2), (" b", 0.2, 0.4), (".", 0.4, 3.0), (" c", 3.0, 3.2), (" d", 3.2, 3.4))
    shorten_at_sentences(words, pace_of(words))
    assert round(words[2].end, 3) == 0.8
    assert words[3].start == 3.0


def test_a_first_word_after_silence_begins_close_to_its_end() -> None:
    parts = [Part(0, 1, 0.0, 6.0)]
    words = timed((" hello", 0.0, 5.0), (" you", 5.0, 5.3), (" there", 5.3, 5.6))
    give_to_parts(words, parts, [sum(len(word.tokens) for word in words)], pace_of(words), 0.0, 0.0)
    found = parts[0].words
    assert found is not None
    assert found[0].end == 5.0
    assert round(found[0].start, 2) == 4.4
    assert (round(parts[0].start, 2), parts[0].stop) == (4.4, 5.6)


def test_words_are_shared_out_by_the_tokens_of_each_part() -> None:
    parts = [Part(0, 1, 10.0, 11.0), Part(1, 2, 11.0, 12.0)]
    words = timed((" ab", 0.0, 0.5), (" cd", 0.5, 1.0), (" ef", 1.0, 2.0))
    give_to_parts(words, parts, [6, 3], pace_of(words), 10.0, 0.0)
    reported = [[(word.word, word.start, word.end) for word in part.words or ()] for part in parts]
    assert reported == [[(" ab", 10.0, 10.5), (" cd", 10.5, 11.0)], [(" ef", 11.0, 12.0)]]
