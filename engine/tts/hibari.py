"""Hibari voices: their package reads the text and makes a wave of the spectra that their models predict."""

from collections.abc import Sequence
from typing import Any, Final

from stentor.protocols.ipc.speech import VoicePlace

from .backend import CannotSpeak, Part, Stop, Stopped, keep_whole
from .english import EnglishPhonemes, kokoro_vocabulary
from .onnx import RUNS, open_session, pcm_of, run, runs

_SEED: Final = 0
"""Seed of every sentence's noise: equal text gives equal samples."""
_MOST_PHONEMES: Final = 400
"""Of one run, as in the package; about thirty seconds at a speed of 1."""
_LEAST_PHONEMES: Final = 200
_INPUTS: Final = ("ids", "speed")
_OUTPUTS: Final = ("lh", "theta", "ln", "lr", "phi", "f0")
_WARM_UP: Final = "Good morning, and welcome."


class HibariSynthesizer:
    """The models of all voices."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load and warm up the models. Raises :class:`.backend.CannotSpeak`."""
        varieties = {place.language or "en-us" for place in voices}
        self._english = {variety: EnglishPhonemes(variety) for variety in varieties}
        self._sessions: dict[str, Any] = {}
        for place in voices:
            session = self._sessions[place.path] = open_session(place.path, threads)
            _check_graph(session, place.path)
        self._vocabulary = kokoro_vocabulary()
        for place in voices:
            self.speak(_WARM_UP, place, 1.0, Stop())

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, _part: Part = keep_whole) -> bytes:
        import numpy as np
        from hibari import dsp

        noise = np.random.default_rng(_SEED)
        phonemes = self._english[voice.language or "en-us"](text)
        most = max(_LEAST_PHONEMES, int(_MOST_PHONEMES * min(1.0, speed)))
        pieces = []
        for part in runs(phonemes[: RUNS * most], most):
            ids = [self._vocabulary[sound] for sound in part if sound in self._vocabulary]
            if not ids:
                continue
            fed = {"ids": np.array([[0, *ids, 0]], np.int64), "speed": np.array([speed], np.float32)}
            spectra = [output[0] for output in run(self._sessions[voice.path], fed, stop)]
            if stop.is_set:
                raise Stopped
            pieces.append(pcm_of(dsp.synth(*spectra, noise)))
        return b"".join(pieces)


def _check_graph(session: Any, path: str) -> None:
    """Raise :class:`CannotSpeak` if the graph's inputs or outputs are others."""
    inputs, outputs = ([each.name for each in ends] for ends in (session.get_inputs(), session.get_outputs()))
    if sorted(inputs) != sorted(_INPUTS) or outputs != [*_OUTPUTS]:
        raise CannotSpeak(
            f"{path} takes {', '.join(inputs)} and gives {', '.join(outputs)}, where a voice of Hibari takes "
            f"{', '.join(_INPUTS)} and gives {', '.join(_OUTPUTS)}: serve another export"
        )
