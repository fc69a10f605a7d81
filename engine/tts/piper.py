"""Piper voices: espeak-ng converts text to phonemes, and onnxruntime runs the model.

Piper's own parts (GPL-3), which convert text to a voice's input, are imported in the speech process only. The model
draws noise from an internal generator that only loading it again would reset, so equal text sounds alike without being
equal to the bit.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from stentor.protocols.ipc.speech import VoicePlace

from .backend import CannotSpeak, Part, Stop, keep_whole
from .onnx import PEAK, RUNS, open_session, run, runs

_SILENCE: Final = 1e-8
_MOST_PHONEMES: Final = 320
"""Most phonemes of one run at a speed of 1: about twenty seconds of speech, for half a gigabyte of memory."""
_LEAST_PHONEMES: Final = 60
_WARM_UP: Final = "Good morning, and welcome: this is a sentence of about the usual length."


class PiperSynthesizer:
    """The loaded models of all voices."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load and warm up the models. Raises :class:`CannotSpeak`."""
        try:
            from piper import PiperVoice
            from piper.config import PiperConfig
        except ImportError as error:
            raise CannotSpeak(f"piper-tts cannot be imported ({error}): install the extra `speech` again") from error
        logging.getLogger("piper").setLevel(logging.ERROR)  # it logs every sound that a voice lacks
        self._voices: dict[str, Any] = {}
        for path in dict.fromkeys(place.path for place in voices):
            session = open_session(path, threads)
            try:
                config = PiperConfig.from_dict(json.loads(Path(f"{path}.json").read_bytes()))
            except Exception as error:  # the library raises errors of many types for broken files
                raise CannotSpeak(f"{path} cannot be loaded: {' '.join(str(error).split())}") from error
            self._voices[path] = PiperVoice(session=session, config=config)
        for place in {place.path: place for place in voices}.values():
            try:
                self.speak(_WARM_UP, place, 1.0, Stop())  # the first run is slow: dictionaries, buffers
            except CannotSpeak as error:
                why = " ".join(str(error.__cause__).split())
                raise CannotSpeak(f"{place.path} cannot be used: {error} ({why})") from error

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, _part: Part = keep_whole) -> bytes:
        import numpy as np

        loaded = self._voices[voice.path]
        pieces = []
        try:
            sentences = loaded.phonemize(text)
        except Exception as error:
            raise CannotSpeak("the voice cannot make sounds of this text") from error
        most = max(_LEAST_PHONEMES, int(_MOST_PHONEMES * min(1.0, speed)))
        left = RUNS * most
        for phonemes in (part for sentence in sentences for part in runs(sentence, most)):
            left -= len(phonemes)
            if left < 0:
                break
            samples = self._run(loaded, phonemes, voice.speaker, speed, stop)
            peak = float(np.max(np.abs(samples))) if samples.size else 0.0
            if peak >= _SILENCE:
                samples = samples * (PEAK / peak)  # as Piper does, since voices differ in loudness
            pieces.append(np.clip(samples, -PEAK, PEAK).astype("<i2").tobytes())
        return b"".join(pieces)

    def _run(self, loaded: Any, phonemes: list[str], speaker: int | None, speed: float, stop: Stop) -> Any:
        import numpy as np

        config = loaded.config
        ids = loaded.phonemes_to_ids(phonemes)
        fed = {
            "input": np.array([ids], dtype=np.int64),
            "input_lengths": np.array([len(ids)], dtype=np.int64),
            "scales": np.array([config.noise_scale, config.length_scale / speed, config.noise_w_scale], np.float32),
        }
        if config.num_speakers > 1:
            fed["sid"] = np.array([speaker or 0], dtype=np.int64)
        return run(loaded.session, fed, stop)[0].reshape(-1)
