"""Text as phonemes, for models that read those: espeak-ng's, by way of piper-tts (GPL-3), in the speech process
alone."""

import unicodedata
from functools import cache
from typing import Any

from .backend import CannotSpeak


def phonemes_of(text: str, language: str) -> str:
    """The phonemes of a text, with stress and punctuation, words separated by one space. Raises
    :class:`CannotSpeak`."""
    try:
        sentences = _phonemizer().phonemize(language, text)
    except ImportError as error:
        raise CannotSpeak(f"piper-tts cannot be imported ({error}): install the extra `speech` again") from error
    except Exception as error:
        raise CannotSpeak("espeak-ng cannot make phonemes of this text") from error
    joined = " ".join("".join(sentence) for sentence in sentences)
    return " ".join(unicodedata.normalize("NFC", joined).split())


@cache
def _phonemizer() -> Any:
    from piper.phonemize_espeak import EspeakPhonemizer

    return EspeakPhonemizer()
