"""MusicGen: T5 reads a description, a decoder writes codes of the music, and EnCodec makes its sound."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer, MusicgenForConditionalGeneration

from stentor.protocols.ipc.speech import VoicePlace

from ..backend import Part, Stop, keep_whole
from ..codec_weights import pcm_of
from .generation import MOST_SECONDS, Interruption, drawing, loading, pretrained, without_special

_MOST_TOKENS: Final = 512
"""Of a description; what is behind them is not read."""
_SECONDS: Final = 30.0
"""Of music, where generation_config.json does not say it."""


class MusicgenSynthesizer:
    """One checkpoint."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint. Raises :class:`..backend.CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            # the first published weights are torch's, of which only tensors are read
            self._model = pretrained(MusicgenForConditionalGeneration, folder, use_safetensors=None)
        rate = self._model.config.audio_encoder.frame_rate
        generation = self._model.generation_config
        generation.max_length = min(generation.max_length or int(_SECONDS * rate), int(MOST_SECONDS * rate))
        self._interruption = Interruption(self._model)

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, _part: Part = keep_whole) -> bytes:
        """``speed`` is 1: the model has no other."""
        text = without_special(text, self._tokenizer)
        inputs = self._tokenizer(text, return_tensors="pt", truncation=True, max_length=_MOST_TOKENS)
        self._interruption.stop = stop
        with drawing():
            wave = self._model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        return pcm_of(wave[0].mean(dim=0))  # of both channels, where it has two
