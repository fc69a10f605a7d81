"""Kokoro voices: English phonemes, a style that depends on their number, and one run of the graph for a sentence."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stentor.protocols.ipc.speech import VoicePlace

from .backend import CannotSpeak, Part, Stop, keep_whole
from .english import EnglishPhonemes, kokoro_vocabulary
from .onnx import RUNS, open_session, pcm_of, run, runs

_MOST_PHONEMES: Final = 320
"""Of one run: about twenty seconds of speech. The model takes 510."""
_LEAST_PHONEMES: Final = 100
_STYLE: Final = 256
"""Width of a style."""
_IDS: Final = ("input_ids", "tokens")
"""Names of the input of phonemes, in newer and older exports."""
_WARM_UP: Final = "Good morning, and welcome."


class KokoroSynthesizer:
    """One graph and the styles of its voices."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load and warm up the graph. Raises :class:`CannotSpeak`."""
        varieties = {place.language or "en-us" for place in voices}
        self._english = {variety: EnglishPhonemes(variety) for variety in varieties}
        self._vocabulary = kokoro_vocabulary()
        path = voices[0].path
        self._session = open_session(path, threads)
        types = {each.name: each.type for each in self._session.get_inputs()}
        self._ids = next((name for name in _IDS if name in types), "")
        if types != {self._ids: "tensor(int64)", "style": "tensor(float)", "speed": "tensor(float)"}:
            found = ", ".join(f"{name} {kind}" for name, kind in types.items())
            raise CannotSpeak(
                f"{path} takes {found}, where a graph of Kokoro takes input_ids tensor(int64), style tensor(float) and "
                "speed tensor(float): serve another export"
            )
        self._styles = {place.name: _style(place) for place in voices}
        self.speak(_WARM_UP, voices[0], 1.0, Stop())

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, _part: Part = keep_whole) -> bytes:
        import numpy as np

        sounds = [sound for sound in self._english[voice.language or "en-us"](text) if sound in self._vocabulary]
        styles = self._styles[voice.name]
        most = max(_LEAST_PHONEMES, int(_MOST_PHONEMES * min(1.0, speed)))
        pieces = []
        for part in runs(sounds[: RUNS * most], most):
            fed = {
                self._ids: np.array([[0, *(self._vocabulary[sound] for sound in part), 0]], np.int64),
                "style": styles[min(len(part), len(styles)) - 1],
                "speed": np.array([speed], np.float32),
            }
            samples = np.asarray(run(self._session, fed, stop)[0], np.float32).reshape(-1)
            pieces.append(pcm_of(samples))
        return b"".join(pieces)


def _style(place: VoicePlace) -> Any:
    """The styles of a voice by the number of phonemes: [numbers, 1, width]."""
    import numpy as np

    file = Path(place.style or "")
    try:
        if zipfile.is_zipfile(file):
            with np.load(file, allow_pickle=False) as archive:
                styles = archive[place.name]
        else:
            styles = np.fromfile(file, "<f4")
        styles = np.ascontiguousarray(styles, np.float32).reshape(-1, 1, _STYLE)
    except Exception as error:
        raise CannotSpeak(
            f"{file} holds no styles of {_STYLE} numbers for {place.name}: {' '.join(str(error).split())}"
        ) from error
    if not len(styles):
        raise CannotSpeak(f"{file} holds no styles of {_STYLE} numbers for {place.name}: it is empty")
    return styles
