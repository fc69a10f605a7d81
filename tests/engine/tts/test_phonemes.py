# ruff: noqa: RUF001
"""Phonemes of texts, as espeak-ng makes them."""

import pytest

from stentor.engine.tts.backend import CannotSpeak
from stentor.engine.tts.phonemes import phonemes_of

pytest.importorskip("piper")


def test_phonemes_have_stress_and_punctuation_and_single_spaces() -> None:
    assert phonemes_of("My name is Dave, and  um, I'm from London.", "en-us") == (
        "maɪ nˈeɪm ɪz dˈeɪv, ænd ˈʌm, aɪm fɹʌm lˈʌndən."
    )
    assert phonemes_of("Hello world. How are you?", "en-us") == "həlˈoʊ wˈɜːld. hˈaʊ ɑːɹ juː?"
    assert phonemes_of("Guten Tag!", "de") != phonemes_of("Guten Tag!", "en-us")


def test_a_language_that_espeak_lacks_cannot_be_spoken() -> None:
    with pytest.raises(CannotSpeak, match="espeak-ng"):
        phonemes_of("Hello.", "xx-nowhere")
