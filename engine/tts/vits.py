"""VITS voices (``facebook/mms-tts-*``) by transformers' modelling code, in float32 on the CPU."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from stentor.protocols.ipc.speech import VoicePlace

from .backend import CannotSpeak, Part, Stop, Stopped, keep_whole

_PEAK: Final = 32767.0
_SEED: Final = 0
"""Seed of every sentence's noise: equal text gives equal samples."""


class VitsSynthesizer:
    """One checkpoint, whose speakers are the voices."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint. Raises :class:`CannotSpeak`."""
        from transformers import VitsModel, VitsTokenizer
        from transformers.utils.logging import set_verbosity_error

        set_verbosity_error()  # it quotes text that it cannot read
        torch.set_num_threads(threads)
        folder = voices[0].path
        try:
            self._tokenizer: Any = VitsTokenizer.from_pretrained(folder, local_files_only=True)
            self._model: Any = VitsModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
            )
        except Exception as error:  # the library raises errors of many types for broken files
            raise CannotSpeak(f"{folder} cannot be loaded: {' '.join(str(error).split())}") from error
        self._model.eval()
        self._rate = float(self._model.config.speaking_rate)
        self._stop = Stop()
        for module in self._model.modules():
            module.register_forward_pre_hook(self._look)

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, _part: Part = keep_whole) -> bytes:
        inputs = self._tokenizer(text, return_tensors="pt")
        if inputs["input_ids"].shape[1] <= 1:  # blanks surround every letter, and no letter is known
            return b""
        self._stop = stop
        with torch.inference_mode(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            wave = self._model(**inputs, speaker_id=voice.speaker, speaking_rate=self._rate * speed).waveform[0]
        samples = (wave * _PEAK).clamp(-_PEAK, _PEAK).to(torch.int16)
        return bytes(samples.contiguous().view(torch.uint8).numpy().tobytes())

    def _look(self, _module: torch.nn.Module, _inputs: object) -> None:
        if self._stop.is_set:
            raise Stopped
