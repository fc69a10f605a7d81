"""CSM: a language model writes the first code of a frame and a small one the others, which Mimi decodes.

A voice is the number of a speaker, or a recording of one: a turn of the conversation that the sentence continues.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import CsmForConditionalGeneration, CsmProcessor

from stentor.protocols.ipc.speech import VoicePlace

from ..backend import CannotSpeak, Part, Stop, keep_whole
from ..recordings import read_recording
from .codec_stream import CodecStream, check_causal
from .frames import FrameParts
from .generation import drawing, loading, longest_seconds, pretrained, without_special

_FIRST_FRAMES: Final = 2
"""Frames of the first part; a frame lasts 80 ms."""
_FRAMES: Final = 4
"""Frames of other parts."""
_PREFIXES: Final = 8
"""Voices whose embedded recordings are kept, about 3 MB each."""


class CsmSynthesizer:
    """One checkpoint with its recordings."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint and the first voice. Raises :class:`CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            self._model = pretrained(CsmForConditionalGeneration, folder)
            self._processor: Any = CsmProcessor.from_pretrained(folder, local_files_only=True)
        if self._processor.chat_template is None:
            raise CannotSpeak(f"{folder} has no chat template, which writes the speakers of a prompt: fetch it again")
        self._codec = self._model.codec_model
        check_causal(self._codec, folder)
        self._end: int = self._model.config.codebook_eos_token_id
        self._rate = float(self._codec.config.frame_rate)
        self._recordings = {
            place.name: read_recording(Path(place.style), self._codec.config.sampling_rate)
            for place in voices
            if place.style is not None
        }
        self._prefixes: dict[str, Any] = {}
        self._embeds("A", voices[0])

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, part: Part = keep_whole) -> bytes:
        """``speed`` is 1: the model has no other."""
        stream = CodecStream(self._codec, lambda codes: self._codec.quantizer.decode(codes.transpose(1, 2)))
        frames = _Frames(FrameParts(stream, _FIRST_FRAMES, _FRAMES, stop, part), self._end)
        with drawing():
            embeds = self._embeds(text, voice)
            room = self._model.config.max_position_embeddings - embeds.shape[1]
            if room < 1:
                raise CannotSpeak(
                    f"a sentence with its voice has {embeds.shape[1]} positions, and the model has "
                    f"{self._model.config.max_position_embeddings}: expected a shorter recording of {voice.name}"
                )
            self._model.generate(
                inputs_embeds=embeds,
                attention_mask=torch.ones(embeds.shape[:2], dtype=torch.long),
                max_new_tokens=min(room, int(longest_seconds(text) * self._rate)),
                streamer=frames,
            )
            return frames.parts.rest()

    def _embeds(self, text: str, voice: VoicePlace) -> Any:
        """The prompt of a sentence: [1, positions, hidden]."""
        inputs = self._inputs(text, voice)
        ids = inputs["input_ids"]
        recorded = (ids[0] == self._model.config.audio_eos_token_id).nonzero().flatten()
        if len(recorded) != (voice.name in self._recordings):
            raise CannotSpeak(
                f"the chat template of {voice.path} does not write one end of audio for a recording: fetch it again"
            )
        if not len(recorded):
            return self._model.embed_text_tokens(ids)
        begin = int(recorded[0]) + 1
        if (prefix := self._prefixes.pop(voice.name, None)) is None:
            with torch.inference_mode():
                merged = self._model._merge_input_ids_with_input_values(
                    ids, inputs["input_values"], inputs["input_values_cutoffs"]
                )
            prefix = merged["inputs_embeds"][:, :begin]
        self._prefixes[voice.name] = prefix  # the last one used is the last
        if len(self._prefixes) > _PREFIXES:
            del self._prefixes[next(iter(self._prefixes))]
        return torch.cat([prefix, self._model.embed_text_tokens(ids[:, begin:])], dim=1)

    def _inputs(self, text: str, voice: VoicePlace) -> Any:
        """The processor's inputs: the recording's turn, and the sentence's."""
        role = str(voice.speaker or 0)
        turns = [{"role": role, "content": [{"type": "text", "text": self._said(text)}]}]
        if (recording := self._recordings.get(voice.name)) is not None:
            said = {"type": "text", "text": self._said(voice.transcript or "")}
            turns.insert(0, {"role": role, "content": [said, {"type": "audio", "path": recording}]})
        return self._processor.apply_chat_template(turns, tokenize=True, return_dict=True)

    def _said(self, text: str) -> str:
        return without_special(text, self._processor.tokenizer)


class _Frames:
    """Takes what ``generate`` tells a streamer: the prompt, then the codes of each frame."""

    def __init__(self, parts: FrameParts, end: int) -> None:
        self.parts = parts
        self._end = end
        self._begun = False

    def put(self, codes: Any) -> None:
        """``codes``: [1, codebooks], but for the first time."""
        if self._begun and not bool((codes == self._end).all()):
            self.parts.take(codes)
        self._begun = True

    def end(self) -> None:
        """The rest is asked for."""
