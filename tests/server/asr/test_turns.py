"""Turns of speakers, read from answers that come in pieces."""

import random

import pytest

from stentor.server.asr.turns import Turn, TurnReader, label

WRITTEN = "[0.00][S01]Hello there.[1.52][1.80][S02] Hi [laughs]. [2.5] [3][S01]Bye[0:04.25]"
TURNS = [Turn(0, 0.0, 1.52, "Hello there."), Turn(1, 1.8, 2.5, "Hi [laughs]."), Turn(0, 3.0, 4.25, "Bye")]


def read(pieces: list[str], seconds: float = 60.0, offset: float = 0.0) -> tuple[str, list[Turn]]:
    reader = TurnReader(seconds, offset)
    text = "".join(reader.add(piece) for piece in pieces) + reader.end()
    return text, reader.ended()


@pytest.mark.parametrize("seed", range(8))
def test_turns_and_their_text_do_not_depend_on_the_pieces_of_an_answer(seed: int) -> None:
    rng, pieces, left = random.Random(seed), list[str](), WRITTEN
    while left:
        size = rng.choice([1, 1, 2, 3, 8])
        pieces.append(left[:size])
        left = left[size:]
    text, turns = read(pieces)
    assert " ".join(text.split()) == "Hello there. Hi [laughs]. Bye"
    assert turns == TURNS


def test_turns_of_a_later_part_begin_where_it_does() -> None:
    _, turns = read([WRITTEN], offset=100.0)
    assert [(turn.start, turn.end) for turn in turns] == [(100.0, 101.52), (101.8, 102.5), (103.0, 104.25)]


def test_a_turn_that_is_cut_off_lasts_until_the_end_and_no_time_is_behind_it() -> None:
    assert read(["[1][S07]So [3"], seconds=2.0) == ("So [3", [Turn(0, 1.0, 2.0, "So [3")])
    assert read(["[1][S07]So[99]"], seconds=2.0)[1] == [Turn(0, 1.0, 2.0, "So")]
    assert read(["[5][S07]So[3]"])[1] == [Turn(0, 5.0, 5.0, "So")]


def test_an_answer_without_marks_is_text_without_turns() -> None:
    assert read(["Nothing ", "but [words", "] [S]."]) == ("Nothing but [words] [S].", [])
    assert read(["[" * 100]) == ("[" * 100, [])
    assert read(["[0][S01][1]", "[2][S02]  ", "[3]"]) == ("", [])


def test_speakers_are_letters_by_who_speaks_first() -> None:
    written = "".join(f"[{n}][S{99 - n}]x[{n}]" for n in range(28))
    assert [label(turn.speaker) for turn in read([written])[1]][-4:] == ["Y", "Z", "AA", "AB"]
