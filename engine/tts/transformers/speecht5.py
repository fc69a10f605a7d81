"""SpeechT5: a decoder makes the spectrogram of a text, in the voice of an x-vector, and HiFi-GAN its sound."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5Tokenizer

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.companions import companion_folder, require_voice_codec
from ..backend import CannotSpeak, Part, Stop, keep_whole
from ..codec_weights import pcm_of
from .generation import Interruption, drawing, loading, longest_seconds, only_tensor, pretrained

_FRAMES_A_LETTER: Final = 20
"""Frames of the spectrogram, at most, after which ``generate_speech`` stops by itself."""


class SpeechT5Synthesizer:
    """One checkpoint with its vocoder and its x-vectors."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint, the vocoder and the voices. Raises :class:`CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            self._tokenizer: Any = SpeechT5Tokenizer.from_pretrained(folder, local_files_only=True)
            # the published weights are torch's, of which only tensors are read
            self._model = pretrained(SpeechT5ForTextToSpeech, folder, use_safetensors=None)
            vocoder = companion_folder(require_voice_codec(folder), folder)
            self._vocoder = pretrained(SpeechT5HifiGan, vocoder, use_safetensors=None)
        config = self._model.config
        if self._vocoder.config.model_in_dim != config.num_mel_bins:
            raise CannotSpeak(
                f"model_in_dim of {vocoder / 'config.json'} is {self._vocoder.config.model_in_dim}: expected the "
                f"{config.num_mel_bins} of num_mel_bins in {folder / 'config.json'}"
            )
        longest = config.max_speech_positions * config.reduction_factor // _FRAMES_A_LETTER
        self._most: int = min(config.max_text_positions, longest)
        """Tokens of a sentence."""
        self._speakers = {place.name: self._speaker(Path(place.style or "")) for place in voices}
        self._interruptions = [Interruption(self._model), Interruption(self._vocoder)]

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, _part: Part = keep_whole) -> bytes:
        """``speed`` is 1: the model has no other."""
        ids = self._tokenizer(text, return_tensors="pt")["input_ids"]
        if ids.shape[1] > self._most:
            raise CannotSpeak(f"a sentence has {ids.shape[1]} letters, and the model has places for {self._most}")
        for each in self._interruptions:
            each.stop = stop
        with drawing():
            wave = self._model.generate_speech(
                ids, self._speakers[voice.name], vocoder=self._vocoder, maxlenratio=self._frames_a_letter(text, ids)
            )
        return pcm_of(wave)

    def _frames_a_letter(self, text: str, ids: Any) -> float:
        """The library's own bound, and ours."""
        config = self._vocoder.config
        frames: float = longest_seconds(text) * config.sampling_rate / math.prod(config.upsample_rates)
        return min(float(_FRAMES_A_LETTER), frames / int(ids.shape[1]))

    def _speaker(self, file: Path) -> Any:
        """The x-vector of a speaker: [1, dim]."""
        vector, dim = only_tensor(file, "the x-vector of a speaker"), self._model.config.speaker_embedding_dim
        if vector.numel() != dim:
            raise CannotSpeak(
                f"{file} holds a tensor of shape {[*vector.shape]}, where the x-vector of a speaker is expected: "
                f"[{dim}]"
            )
        return vector.float().reshape(1, dim)
