"""VibeVoice: a language model says when a piece of audio follows, and diffusion on its hidden states makes the piece.

A voice is a recording, which stands in the prompt.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import VibeVoiceForConditionalGeneration, VibeVoiceProcessor

from stentor.protocols.ipc.speech import VoicePlace

from ..backend import CannotSpeak, Part, Stop, keep_whole
from ..recordings import read_recording
from .diffusion import DpmSolver, check_solver
from .frames import FrameParts
from .generation import drawing, loading, longest_seconds, pretrained, without_special

_FIRST_PIECES: Final = 1
_PIECES: Final = 3
"""Of the first part and of others; a piece lasts 133 ms."""
_AROUND_PIECES: Final = 8
"""Tokens beside those of pieces: of their beginning and their end."""


class _Model(VibeVoiceForConditionalGeneration):
    """Tells each piece of audio to :attr:`on_audio` while ``generate`` runs."""

    on_audio: Callable[[Any], None]

    def _decode_audio_latent(self, *given: Any, **named: Any) -> Any:
        decoded = super()._decode_audio_latent(*given, **named)
        self.on_audio(decoded.audio[0])
        return decoded


class VibeVoiceSynthesizer:
    """One checkpoint with its recordings."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint and the recordings. Raises :class:`CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            self._model = pretrained(_Model, folder)
            self._processor: Any = VibeVoiceProcessor.from_pretrained(folder, local_files_only=True)
        if self._processor.chat_template is None:
            raise CannotSpeak(f"{folder} has no chat template, which writes the voice of a prompt: fetch it again")
        generation = self._model.generation_config
        check_solver(
            getattr(generation, "noise_scheduler_class", "DPMSolverMultistepScheduler"),
            getattr(generation, "noise_scheduler_config", {}),
        )
        self._rate: int = self._processor.feature_extractor.sampling_rate
        self._recordings = {
            place.name: read_recording(Path(place.style), self._rate) for place in voices if place.style is not None
        }

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, part: Part = keep_whole) -> bytes:
        """``speed`` is 1: the model has no other."""
        inputs = self._inputs(text, voice)
        config = self._model.config
        room = config.text_config.max_position_embeddings - inputs["input_ids"].shape[1]
        if room < _AROUND_PIECES:
            raise CannotSpeak(
                f"a sentence with its voice has {inputs['input_ids'].shape[1]} tokens, and the model has places for "
                f"{config.text_config.max_position_embeddings}: expected a shorter recording of {voice.name}"
            )
        pieces = int(longest_seconds(text) * self._rate / config.audio_config.hop_length)
        parts = FrameParts(_Joined(), _FIRST_PIECES, _PIECES, stop, part)
        self._model.on_audio = parts.take
        with drawing():
            self._model.generate(
                **inputs, max_new_tokens=min(room, pieces + _AROUND_PIECES), noise_scheduler=DpmSolver()
            )
            return parts.rest()

    def _inputs(self, text: str, voice: VoicePlace) -> Any:
        """The processor's inputs: the recording of speaker 0, and what he says."""
        said = without_special(text, self._processor.tokenizer)
        content: list[dict[str, Any]] = [{"type": "text", "text": said}]
        if (recording := self._recordings.get(voice.name)) is not None:
            content.append({"type": "audio", "path": recording})
        turns = [{"role": "0", "content": content}]
        return self._processor.apply_chat_template(turns, tokenize=True, return_dict=True, return_tensors="pt")


class _Joined:
    """A :class:`.frames.FrameDecoder` of pieces that are samples already."""

    def push(self, frames: Any) -> Any:
        """``frames``: [1, pieces, samples]."""
        return frames.flatten()

    def finish(self) -> Any:
        """Nothing waits."""
        return torch.empty(0)
