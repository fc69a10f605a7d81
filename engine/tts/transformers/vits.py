"""VITS voices (``facebook/mms-tts-*``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import VitsModel, VitsTokenizer

from stentor.protocols.ipc.speech import VoicePlace

from ..backend import Part, Stop, keep_whole
from ..codec_weights import pcm_of
from .generation import Interruption, drawing, loading, pretrained


class VitsSynthesizer:
    """One checkpoint, whose speakers are the voices."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint. Raises :class:`..backend.CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            self._tokenizer: Any = VitsTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = pretrained(VitsModel, folder)
        self._rate = float(self._model.config.speaking_rate)
        self._interruption = Interruption(self._model)

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, _part: Part = keep_whole) -> bytes:
        inputs = self._tokenizer(text, return_tensors="pt")
        if inputs["input_ids"].shape[1] <= 1:  # blanks surround every letter, and no letter is known
            return b""
        self._interruption.stop = stop
        with drawing():
            wave = self._model(**inputs, speaker_id=voice.speaker, speaking_rate=self._rate * speed).waveform[0]
        return pcm_of(wave)
