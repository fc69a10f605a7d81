"""Whose sentence is next, with texts whose sentences are numbers."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from stentor.server.tts.fairness import FIRSTS_IN_A_ROW, Turns
from stentor.server.tts.sentences import MOST_CHARS, weight


@dataclass(eq=False)
class Text:
    """So many characters in each sentence."""

    name: str
    sentences: deque[int]
    has_audio: bool = False
    waits: bool = False
    made: list[int] = field(default_factory=list)

    @property
    def wants(self) -> bool:
        return bool(self.sentences) and not self.waits

    @property
    def next_weight(self) -> float:
        return self.sentences[0]

    @property
    def rest(self) -> int:
        return sum(self.sentences)


def text(name: str, *sentences: int) -> Text:
    return Text(name, deque(sentences))


class Voice:
    """Makes one sentence after the other."""

    def __init__(self, *texts: Text) -> None:
        self.turns: Turns[Text] = Turns()
        self.order: list[str] = []
        for each in texts:
            self.turns.join(each)

    def make(self, most: int = 1) -> bool:
        """Whether there was anything to make."""
        for _ in range(most):
            chosen = self.turns.next()
            if chosen is None:
                return False
            chosen.made.append(chosen.sentences.popleft())
            chosen.has_audio = True
            self.order.append(chosen.name)
            if not chosen.sentences:
                self.turns.leave(chosen)
        return True

    def make_until(self, over: Text) -> int:
        """How many sentences of others came before its last."""
        begun = len(self.order)
        while over.sentences:
            assert self.make()
        return sum(name != over.name for name in self.order[begun:])


def crowd(size: int) -> list[Text]:
    return [text(f"long{number}", 24, *[172] * 200) for number in range(size)]


def test_texts_that_are_alike_take_turns() -> None:
    voice = Voice(*(text(name, 10, 20, 20, 20) for name in "abc"))
    voice.make(12)
    assert "".join(voice.order) == "abc" * 4


def test_a_short_text_that_comes_with_fifty_long_ones_waits_for_no_more_than_a_beginning_of_each() -> None:
    short = text("short", 20, 18, 16)
    voice = Voice(*crowd(50), short)
    assert voice.make_until(short) <= 3 * FIRSTS_IN_A_ROW
    assert voice.order[0] == "short"
    assert all(sum(other.made) <= 24 for other in voice.turns._accounts)


def test_a_short_text_among_fifty_long_ones_that_speak_is_told_whole() -> None:
    voice = Voice(*crowd(50))
    voice.make(400)
    for pause in range(40):
        short = text("short", 20, 18, 16)
        voice.turns.join(short)
        assert voice.make_until(short) <= 1
        voice.make(pause)


def test_a_text_that_is_as_long_as_a_sentence_of_others_waits_for_about_one_of_each() -> None:
    voice = Voice(*crowd(50))
    voice.make(400)
    for pause in range(20):
        several = text("several", 60, 150, 22)  # more than is little
        voice.turns.join(several)
        assert voice.make_until(several) <= 75
        voice.make(pause)


def test_short_texts_without_end_do_not_silence_a_long_one() -> None:
    long = text("long", 60, *[260] * 40)
    voice = Voice(long)
    voice.make(3)
    for number in range(600):
        for place in range(2):  # twice as much as can be made
            voice.turns.join(text(f"{number}.{place}", 10))
        voice.make()
    assert len(long.made) > 3 + 600 // (FIRSTS_IN_A_ROW + 1) // 2


def test_a_long_beginning_is_not_passed_by_for_ever_by_short_ones() -> None:
    long = text("long", 64)
    voice = Voice(long)
    for number in range(400):
        while len(voice.turns) < 16:
            voice.turns.join(text(f"{number}", 4))
        voice.make()
    assert not long.sentences


def test_who_reads_slowly_has_not_saved_up_what_others_had() -> None:
    slow, fast = text("slow", *[100] * 60), text("fast", *[100] * 60)
    voice = Voice(slow, fast)
    voice.make(2)
    slow.waits = True
    voice.make(30)
    slow.waits = False
    voice.order.clear()
    voice.make(20)
    first = voice.order.index("fast")
    assert first <= 2
    assert voice.order.count("fast") >= 8


def test_a_sentence_weighs_what_it_takes_to_say() -> None:
    nothing = weight("")
    assert weight("Hello there") - nothing == 11
    assert weight("2026") - nothing == 16
    assert weight("Hello there", 0.5) - nothing == 22
    assert weight("Hello there", 0.1) - nothing == 44
    assert 0 < nothing < 64


sentences = st.lists(st.integers(1, MOST_CHARS), min_size=1, max_size=12)


@given(st.lists(st.tuples(sentences, st.integers(0, 30)), min_size=1, max_size=12))
def test_every_sentence_is_made_once_and_no_text_gets_far_ahead(texts: list[tuple[list[int], int]]) -> None:
    voice, came = Voice(), []
    for number, (lengths, made_before) in enumerate(texts):
        came.append(text(str(number), *lengths))
        voice.turns.join(came[-1])
        voice.make(made_before)
    waiting = [each for each in came if each.sentences]
    before = {each: sum(each.made) for each in waiting}
    while len([each for each in waiting if each.sentences]) == len(waiting) and voice.make():
        pass
    if len(waiting) == len([each for each in waiting if each.has_audio]):
        had = [sum(each.made) - before[each] for each in waiting]
        assert not had or max(had) - min(had) <= (len(waiting) + 3) * 2 * MOST_CHARS
    while voice.make():
        pass
    assert [each.made for each in came] == [lengths for lengths, _ in texts]
    assert len(voice.turns) == 0
