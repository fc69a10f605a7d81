"""What is settled by two hypotheses in a row is never taken back, and in the end joins to one transcript."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.api.realtime.listening.agreement import LocalAgreement, Word, words_of
from stentor.tests.examples import examples


def texts(words: list[Word]) -> str:
    return "".join(word.text for word in words)


def test_words_are_settled_when_two_hypotheses_agree_on_them() -> None:
    agreement = LocalAgreement()
    assert agreement.add(" The quick brow") == []
    assert texts(agreement.add(" The quick brown fox")) == " The quick"
    assert texts(agreement.add(" The quick brown fox jumps")) == " brown fox"
    assert texts(agreement.finish(" The quick brown fox jumped over.")) == " jumped over."


def test_case_and_marks_do_not_keep_words_from_agreeing() -> None:
    agreement = LocalAgreement()
    agreement.add(" hello, there")
    assert texts(agreement.add(" Hello there my")) == " Hello there"


def test_a_mark_that_a_settled_word_gets_later_is_told_then() -> None:
    agreement = LocalAgreement()
    agreement.add(" Go home now")
    assert texts(agreement.add(" Go home now")) == " Go home now"
    assert texts(agreement.finish(" Go home now.")) == "."
    assert agreement.text == " Go home now."


def test_a_model_that_changes_its_mind_about_what_was_told_goes_on_behind_it() -> None:
    agreement = LocalAgreement()
    agreement.add(" I scream for you")
    agreement.add(" I scream for you all")
    assert agreement.text == " I scream for you"
    assert texts(agreement.finish(" Ice cream for you all day")) == " all day"


def test_scripts_without_spaces_are_settled_letter_by_letter() -> None:
    agreement = LocalAgreement()
    agreement.add("今天天气很")
    assert texts(agreement.add("今天天气好。")) == "今天天气"
    assert texts(agreement.finish("今天天气好。")) == "好。"


def test_words_join_to_the_text_without_the_space_at_its_end() -> None:
    for text in (" a  b\nc", "x", "", "  ", " 今 b, 天。c"):
        assert "".join(word.text for word in words_of(text)) == text.rstrip()
        assert all(text.startswith(word.text, word.begin) for word in words_of(text))


hypotheses = st.lists(st.text(" abc.,天", max_size=30), max_size=8)


@settings(max_examples=examples(75, 10 * 300), deadline=None)
@given(hypotheses, st.text(" abc.,天", max_size=30))
def test_what_is_told_is_what_is_settled_whatever_the_model_says(guesses: list[str], last: str) -> None:
    agreement = LocalAgreement()
    reported = ""
    for guess in guesses:
        reported += texts(agreement.add(guess))
        assert agreement.text == reported
    reported += texts(agreement.finish(last))
    assert agreement.text == reported
    if not guesses:
        assert reported == last.rstrip()


@settings(max_examples=examples(60, 10 * 200), deadline=None)
@given(st.lists(st.sampled_from(["one", "two,", "three.", "Four"]), max_size=12), st.data())
def test_growing_hypotheses_of_one_text_are_told_as_that_text(words: list[str], data: st.DataObject) -> None:
    text = "".join(f" {word}" for word in words)
    agreement, reported = LocalAgreement(), ""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(words)), max_size=6)))
    for cut in cuts:
        reported += texts(agreement.add("".join(f" {word}" for word in words[:cut])))
        assert text.startswith(reported)
    assert reported + texts(agreement.finish(text)) == text
