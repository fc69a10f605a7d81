"""Turns of speakers, read from answers that come in pieces."""

import json
import random

import pytest

from stentor.server.asr.turns import READERS, Turn, label

WRITTEN = "[0.00][S01]Hello there.[1.52][1.80][S02] Hi [laughs]. [2.5] [3][S01]Bye[0:04.25]"
TURNS = [Turn(0, 0.0, 1.52, "Hello there."), Turn(1, 1.8, 2.5, "Hi [laughs]."), Turn(0, 3.0, 4.25, "Bye")]


def read(pieces: list[str], seconds: float = 60.0, offset: float = 0.0, form: str = "marks") -> tuple[str, list[Turn]]:
    reader = READERS[form](seconds, offset)
    text = "".join(reader.add(piece) for piece in pieces) + reader.end()
    return text, reader.ended()


ENTRIES = (
    {"Start": 0.0, "End": 1.52, "Speaker": 4, "Content": "Hello there."},
    {"Start": 1.8, "End": 2.5, "Speaker": 0, "Content": "Hi [laughs]. "},
    {"Start": 3, "End": 4.25, "Speaker": 4, "Content": "Bye"},
)
JSON = json.dumps(ENTRIES)


@pytest.mark.parametrize(("form", "written"), [("marks", WRITTEN), ("json", f" {JSON}\n")])
@pytest.mark.parametrize("seed", range(8))
def test_turns_and_their_text_do_not_depend_on_the_pieces_of_an_answer(form: str, written: str, seed: int) -> None:
    rng, pieces, left = random.Random(seed), list[str](), written
    while left:
        size = rng.choice([1, 1, 2, 3, 8])
        pieces.append(left[:size])
        left = left[size:]
    text, turns = read(pieces, form=form)
    assert " ".join(text.split()) == "Hello there. Hi [laughs]. Bye"
    assert turns == TURNS


def test_turns_of_a_later_part_begin_where_it_does() -> None:
    _, turns = read([WRITTEN], offset=100.0)
    assert [(turn.start, turn.end) for turn in turns] == [(100.0, 101.52), (101.8, 102.5), (103.0, 104.25)]


def test_a_turn_that_is_cut_off_lasts_until_the_end_and_no_time_is_behind_it() -> None:
    assert read(["[1][S07]So [3"], seconds=2.0) == ("So [3", [Turn(0, 1.0, 2.0, "So [3")])
    assert read(["[1][S07]So[99]"], seconds=2.0)[1] == [Turn(0, 1.0, 2.0, "So")]
    assert read(["[5][S07]So[3]"])[1] == [Turn(0, 5.0, 5.0, "So")]


def test_an_entry_of_json_within_the_audio_and_without_a_speaker_is_text_alone() -> None:
    entries = [
        {"Start": 0, "End": 99, "Speaker": "S1", "Content": "To } the [end]"},
        {"Start": 1, "End": 2, "Content": "[Music]"},
        {"Start": -1, "End": 2, "Speaker": 0, "Content": "when?"},
        {"Start time": 1, "End time": 0.5, "Speaker ID": 0, "Content": "here"},
    ]
    text, turns = read([json.dumps(entries)], seconds=5.0, offset=10.0, form="json")
    assert text == "To } the [end] [Music] when? here"
    assert turns == [Turn(0, 10.0, 15.0, "To } the [end]"), Turn(1, 11.0, 11.0, "here")]


def test_a_cut_off_list_has_its_whole_entries_and_what_is_no_list_is_text() -> None:
    assert read([JSON[:-20]], form="json") == (
        "Hello there. Hi [laughs].",
        [Turn(0, 0.0, 1.52, "Hello there."), Turn(1, 1.8, 2.5, "Hi [laughs].")],
    )
    assert read(['[{"Start', '": 1'], form="json") == ('{"Start": 1', [])
    assert read([" Nothing", " [heard]"], form="json") == ("Nothing [heard]", [])
    assert read(['[{"Words": "none"}]'], form="json") == ('{"Words": "none"}', [])
    assert read(["[]"], form="json") == ("", [])
    assert read(["[" + '{"a":' * 5000 + "}"], form="json")[1] == []


def test_an_answer_without_marks_is_text_without_turns() -> None:
    assert read(["Nothing ", "but [words", "] [S]."]) == ("Nothing but [words] [S].", [])
    assert read(["[" * 100]) == ("[" * 100, [])
    assert read(["[0][S01][1]", "[2][S02]  ", "[3]"]) == ("", [])


def test_speakers_are_letters_by_who_speaks_first() -> None:
    written = "".join(f"[{n}][S{99 - n}]x[{n}]" for n in range(28))
    assert [label(turn.speaker) for turn in read([written])[1]][-4:] == ["Y", "Z", "AA", "AB"]
