"""Dia: an encoder reads a text's bytes, and a decoder writes codes of DAC, each codebook with a delay.

A voice is a recording, whose transcript stands before the text and whose codes before the sentence's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import DacModel, DiaFeatureExtractor, DiaForConditionalGeneration, DiaProcessor, DiaTokenizer

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.companions import companion_folder, require_voice_codec
from ..backend import CannotSpeak, Part, Stop, keep_whole
from ..recordings import read_recording
from .context import ContextDecoder, dac_context
from .delays import DelayedCodes
from .frames import FrameParts
from .generation import drawing, loading, longest_seconds, pretrained

_FIRST_SECONDS: Final = 0.3
_SECONDS: Final = 0.6
"""Of the first part and of others: the codec decodes a quarter of a second around each, too."""
_SPEAKER: Final = "[S1]"
"""The mark of a dialogue's first speaker, with which a text begins."""


class DiaSynthesizer:
    """One checkpoint with its recordings and its codec."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint, the codec and the recordings. Raises :class:`CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            self._model = pretrained(DiaForConditionalGeneration, folder)
            self._codec = pretrained(DacModel, companion_folder(require_voice_codec(folder), folder))
            self._processor: Any = DiaProcessor(
                DiaFeatureExtractor.from_pretrained(folder, local_files_only=True),
                DiaTokenizer.from_pretrained(folder, local_files_only=True),
                self._codec,
            )
        config = self._codec.config
        if any(ratio % 2 for ratio in config.upsampling_ratios) or config.n_codebooks != self._decoder.num_channels:
            raise CannotSpeak(
                f"the codec of {folder} has upsampling ratios {[*config.upsampling_ratios]} and {config.n_codebooks} "
                f"codebooks: expected even ratios and {self._decoder.num_channels} codebooks, as descript/dac_44khz has"
            )
        self._rate = config.sampling_rate / config.hop_length
        self._codes = {
            place.name: self._encoded(read_recording(Path(place.style), config.sampling_rate))
            for place in voices
            if place.style is not None
        }
        """``decoder_input_ids`` and ``decoder_attention_mask`` of recordings."""

    @property
    def _decoder(self) -> Any:
        return self._model.config.decoder_config

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, part: Part = keep_whole) -> bytes:
        """``speed`` is 1: the model has no other."""
        said = "" if voice.transcript is None else f"{_SPEAKER} {voice.transcript} "
        inputs = dict(self._inputs(f"{said}{_SPEAKER} {text}"))
        inputs |= self._codes.get(voice.name, {})
        longest = max(self._model.config.delay_pattern)
        room = self._decoder.max_position_embeddings - inputs["decoder_input_ids"].shape[1]
        most = self._model.config.encoder_config.max_position_embeddings
        if inputs["input_ids"].shape[1] > most or room < longest:
            raise CannotSpeak(
                f"a sentence with the transcript of {voice.name} has {inputs['input_ids'].shape[1]} bytes, and the "
                f"model has places for {most}, and {room} left for sound: expected a shorter recording"
            )
        first, later = (max(1, round(seconds * self._rate)) for seconds in (_FIRST_SECONDS, _SECONDS))
        decoder = ContextDecoder(
            self._decoded, dac_context(self._codec.config.upsampling_ratios), self._codec.config.hop_length
        )
        parts = FrameParts(decoder, first, later, stop, part)
        codes = DelayedCodes(parts, self._model.config.delay_pattern, self._decoder.eos_token_id)
        with drawing():
            self._model.generate(
                **inputs,
                max_new_tokens=min(room, int(longest_seconds(text) * self._rate) + longest),
                streamer=_Steps(codes),
            )
            return codes.rest()

    def _decoded(self, codes: Any) -> Any:
        """The samples of codes, [1, frames, codebooks]."""
        return self._codec.decode(audio_codes=codes.transpose(1, 2)).audio_values[0]

    def _encoded(self, recording: Any) -> dict[str, Any]:
        with torch.inference_mode():
            inputs = self._inputs(_SPEAKER, recording)
        return {name: inputs[name] for name in ("decoder_input_ids", "decoder_attention_mask")}

    def _inputs(self, text: str, recording: Any = None) -> Any:
        ids = {name: getattr(self._decoder, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        return self._processor(
            text=text,
            audio=recording,
            text_kwargs={"padding": False, "truncation": False},
            sampling_rate=self._codec.config.sampling_rate,
            delay_pattern=self._model.config.delay_pattern,
            **ids,
        )


class _Steps:
    """Takes what ``generate`` tells a streamer: the prompt, then the codes of each step."""

    def __init__(self, codes: DelayedCodes) -> None:
        self._codes = codes
        self._begun = False

    def put(self, codes: Any) -> None:
        """``codes``: [codebooks], but for the first time."""
        if self._begun:
            self._codes.take(codes)
        self._begun = True

    def end(self) -> None:
        """The rest is asked for."""
