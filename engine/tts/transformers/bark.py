"""Bark: one GPT writes semantic tokens of a text, a second one coarse codes of them, a third fills in the fine codes,
and EnCodec makes the sound.

A voice is a preset: tokens and codes of a recording, which stand before those of the sentence.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, BarkModel
from transformers.models.bark.generation_configuration_bark import (
    BarkCoarseGenerationConfig,
    BarkFineGenerationConfig,
    BarkSemanticGenerationConfig,
)

from stentor.protocols.ipc.speech import VoicePlace

from ..backend import CannotSpeak, Part, Stop, keep_whole
from ..codec_weights import pcm_of
from ..forms.bark import preset_files
from .generation import Interruption, drawing, loading, longest_seconds, pretrained


class BarkSynthesizer:
    """One checkpoint with its presets."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint and the presets. Raises :class:`CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            # the published weights are torch's, of which only tensors are read
            self._model = pretrained(BarkModel, folder, use_safetensors=None)
            told = self._model.generation_config
            self._semantic = BarkSemanticGenerationConfig(**told.semantic_config)
            self._coarse = BarkCoarseGenerationConfig(**told.coarse_acoustics_config)
            self._fine = BarkFineGenerationConfig(**told.fine_acoustics_config)
            self._codes: int = told.codebook_size
        self._expected = {
            "semantic_prompt": (0, self._semantic.semantic_vocab_size),
            "coarse_prompt": (self._coarse.n_coarse_codebooks, self._codes),
            "fine_prompt": (self._fine.n_fine_codebooks, self._codes),
        }
        """Of the arrays of a preset: rows, 0 for a plain one, and what its numbers are below."""
        self._presets = {place.name: self._preset(folder, place.name) for place in voices if place.style is not None}
        self._interruption = Interruption(self._model)

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, _part: Part = keep_whole) -> bytes:
        """``speed`` is 1: the model has no other. A sentence beyond the model's places is spoken in parts."""
        self._interruption.stop = stop
        return b"".join(self._spoken(part, voice) for part in self._parts(text))

    def _parts(self, text: str) -> Iterator[str]:
        """``text``, or its halves between words as long as they have too many tokens."""
        if len(text) < 2 or len(self._tokenizer.tokenize(text)) <= self._semantic.max_input_semantic_length:
            yield text
            return
        middle = len(text) // 2
        middle = text.rfind(" ", 1, middle + 1) if " " in text[1 : middle + 1] else middle
        yield from self._parts(text[:middle])
        yield from self._parts(text[middle:])

    def _spoken(self, text: str, voice: VoicePlace) -> bytes:
        most = self._semantic.max_input_semantic_length
        inputs = self._tokenizer(
            text, return_tensors="pt", padding="max_length", max_length=most, add_special_tokens=False
        )
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        if not int(mask.sum()):
            return b""
        preset, model = self._presets.get(voice.name), self._model
        longest = int(longest_seconds(text) * self._semantic.semantic_rate_hz)
        with drawing():
            meant = model.semantic.generate(
                ids,
                history_prompt=preset,
                semantic_generation_config=self._semantic,
                attention_mask=mask,
                min_eos_p=None,  # as BarkModel.generate has it
                max_new_tokens=min(self._semantic.max_new_tokens or longest, longest),
            )
            if bool((meant == self._semantic.semantic_pad_token).all()):
                return b""
            stages = {
                "history_prompt": preset,
                "semantic_generation_config": self._semantic,
                "coarse_generation_config": self._coarse,
                "codebook_size": self._codes,
            }
            coarse = model.coarse_acoustics.generate(meant, **stages)
            if not coarse.shape[1]:
                return b""
            fine = model.fine_acoustics.generate(coarse, fine_generation_config=self._fine, **stages)
            return pcm_of(model.codec_decode(fine)[0])

    def _preset(self, folder: Path, name: str) -> dict[str, Any]:
        """The arrays of a preset, int64. Raises :class:`CannotSpeak`."""
        found = {}
        for part, file in preset_files(folder, name).items():
            try:
                array = np.load(file, allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise CannotSpeak(f"{file} cannot be read: {' '.join(str(error).split())}") from error
            rows, below = self._expected[part]
            shaped = array.ndim == (2 if rows else 1) and (not rows or len(array) == rows)
            if not shaped or array.dtype.kind not in "iu" or not array.size or array.min() < 0 or array.max() >= below:
                of = f"{rows} rows of " if rows else ""
                raise CannotSpeak(
                    f"{file} holds an array of {array.dtype} of shape {[*array.shape]}, where {of}whole numbers from 0 "
                    f"to {below - 1} are expected"
                )
            found[part] = torch.from_numpy(array.astype(np.int64))
        return found
