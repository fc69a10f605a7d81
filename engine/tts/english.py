"""English text to phonemes in the alphabet of Kokoro's voices, without espeak-ng.

The front-end is that of ``hibari-tts`` (Apache-2.0): a lexicon, a tagger, and a small network for unknown words. It is
imported in the speech process only.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from stentor.protocols.ipc.speech import English

from ..loading.errors import CheckpointError
from .backend import CannotSpeak

_INSTALL: Final = "install the extra `english` (pip install 'stentor[english]')"
_PACKAGE: Final = "hibari"
_LONG_WORD: Final = re.compile(r"\S{32}(?=\S)")
"""The front-end takes time that grows with the cube of a word's parts, and cannot read numbers of 37 digits."""


def require_english(voice: str) -> None:
    """Raise :class:`CheckpointError` if the front-end or onnxruntime is not installed."""
    missing = [name for name in (_PACKAGE, "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise CheckpointError(
            f"the voice {voice} reads phonemes, which hibari-tts makes of English text, and "
            f"{' and '.join(missing)} cannot be imported: {_INSTALL}"
        )


def kokoro_vocabulary() -> dict[str, int]:
    """Numbers of the phonemes, the same in Kokoro and in what was distilled from it. Raises :class:`CannotSpeak`."""
    spec = importlib.util.find_spec(_PACKAGE)
    file = Path(spec.origin if spec is not None and spec.origin else "").parent / "assets" / "vocab.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.DecodeError) as error:
        raise CannotSpeak(f"hibari-tts has no readable vocabulary ({error}): {_INSTALL} again") from error


class EnglishPhonemes:
    """One variety of English."""

    def __init__(self, variety: English) -> None:
        """Load the lexicon. Raises :class:`CannotSpeak`."""
        try:
            from hibari.g2p import G2P
        except ImportError as error:
            raise CannotSpeak(f"hibari-tts cannot be imported ({error}): {_INSTALL} again") from error
        self._read: Any = G2P(british=variety == "en-gb")

    def __call__(self, text: str) -> str:
        """The phonemes of one sentence; empty if it has no word. Raises :class:`CannotSpeak`."""
        try:
            phonemes = self._read(_LONG_WORD.sub(r"\g<0> ", text))
        except Exception as error:
            raise CannotSpeak("the voice cannot make sounds of this text") from error
        return str(phonemes)
