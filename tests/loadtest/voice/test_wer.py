"""Word errors, and what is made of rounds."""

import wave
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stentor.loadtest.peers.libraries import Done
from stentor.loadtest.voice.clips import SENTENCES, Clip, joined
from stentor.loadtest.voice.transcription import WordErrors, summary, word_errors

WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=7)


def test_words_put_in_left_out_and_heard_as_others_count_once_each() -> None:
    said = ["the", "cat", "sat", "on", "the", "mat"]
    assert word_errors(said, said) == WordErrors(0, 6)
    assert word_errors(said, ["the", "cat", "sat", "on", "mat"]).errors == 1
    assert word_errors(said, ["the", "fat", "cat", "sat", "on", "the", "mat"]).errors == 1
    assert word_errors(said, ["the", "cat", "sat", "in", "the", "mat"]).errors == 1
    assert word_errors(said, []).rate == 1.0
    assert word_errors([], ["uh"]).rate == 1.0


@given(WORDS, WORDS, WORDS)
def test_errors_are_a_distance(first: list[str], second: list[str], third: list[str]) -> None:
    direct = word_errors(first, third).errors
    assert direct <= word_errors(first, second).errors + word_errors(second, third).errors
    assert word_errors(first, second).errors == word_errors(second, first).errors
    assert (word_errors(first, second).errors == 0) == (first == second)


def test_rates_of_several_texts_are_weighed_by_their_words() -> None:
    assert (WordErrors(1, 2) + WordErrors(0, 8)).rate == 0.1


def test_sentences_are_sixty_different_ones() -> None:
    assert len(set(SENTENCES)) == len(SENTENCES) == 60


def test_ratios_are_of_times_in_the_same_round() -> None:
    rounds = {
        ("stentor", "1"): [Done(1.0, 0.5, [""]), Done(10.0, 0.5, [""])],
        ("other", "1"): [Done(2.0, 1.0, [""]), Done(20.0, 2.0, [""])],
    }
    ours, other = summary(rounds, {"1": 10.0})
    assert (ours.ratio, other.ratio, other.cpu_ratio) == (1.0, 2.0, 3.0)
    assert ours.median_rtf == 0.55


def test_joined_clips_have_silence_before_and_between(tmp_path: Path) -> None:
    clips = []
    for number in range(2):
        path = tmp_path / f"{number}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(1000)
            file.writeframes(b"\x01\x00" * 500)
        clips.append(Clip(path, f"clip {number}"))
    found = joined(clips, tmp_path / "all.wav", lead_seconds=0.1)
    assert found.text == "clip 0 clip 1"
    assert round(found.seconds, 3) == 1.9
