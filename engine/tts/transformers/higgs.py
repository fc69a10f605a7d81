"""Higgs Audio V2: a language model writes codes, each codebook with a delay, in a conversation that may begin with a
recording.

A voice is a recording: its transcript is a turn of the user, and its codes are the answer.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import soxr
import torch
from transformers import AutoTokenizer, HiggsAudioV2ForConditionalGeneration, HiggsAudioV2TokenizerConfig
from transformers.models.xcodec.modeling_xcodec import XcodecEuclideanCodebook, XcodecModel

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.companions import companion_folder, require_voice_codec
from ..backend import CannotSpeak, Part, Stop, keep_whole
from ..recordings import read_recording
from .context import ContextDecoder, dac_context
from .delays import DelayedCodes
from .frames import FrameParts
from .generation import drawing, loading, longest_seconds, pretrained, without_special

_FIRST_SECONDS: Final = 0.4
_SECONDS: Final = 0.8
"""Of the first part and of others: the codec decodes frames around each, too."""
_SYSTEM: Final = "Generate audio following instruction."
_SCENE: Final = "Audio is recorded from a quiet room."
"""What the conversation begins with in the makers' examples."""
_BESIDE: Final = 160
"""Samples of silence on either side of what the semantic encoder hears."""
_NO_CODE: Final = -1


class _Codebook(torch.nn.Module):
    """Codes of vectors in a smaller space."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.codebook: Any = XcodecEuclideanCodebook(config)
        self.project_in = torch.nn.Linear(config.hidden_size, config.codebook_dim)
        self.project_out = torch.nn.Linear(config.codebook_dim, config.hidden_size)

    def encode(self, states: torch.Tensor) -> torch.Tensor:
        """states [1, hidden, frames] → codes [1, frames]"""
        codes: torch.Tensor = self.codebook.encode(self.project_in(states.transpose(1, 2)))
        return codes

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """codes [1, frames] → [1, hidden, frames]"""
        vectors: torch.Tensor = self.project_out(self.codebook.decode(codes))
        return vectors.transpose(1, 2)


class _Codec(XcodecModel):
    """X-codec with such codebooks. transformers' class of it, which is not used, needs torchaudio to be imported."""

    config_class = HiggsAudioV2TokenizerConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.quantizer.quantizers = torch.nn.ModuleList([_Codebook(config) for _ in range(config.num_quantizers)])

    def _extract_semantic_features(self, input_values: torch.Tensor) -> torch.Tensor:
        config: Any = self.config
        samples = input_values[0, 0].numpy()
        if config.sample_rate != config.semantic_sample_rate:
            samples = soxr.resample(samples, config.sample_rate, config.semantic_sample_rate)
        padded = torch.nn.functional.pad(torch.from_numpy(samples)[None], (_BESIDE, _BESIDE))
        states = self.semantic_model(padded, output_hidden_states=True).hidden_states
        features = torch.stack(tuple(states), dim=1).mean(dim=1)
        return features[:, :: max(1, config.semantic_downsample_factor)]


class HiggsSynthesizer:
    """One checkpoint with its recordings and its codec."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint, the codec and the recordings. Raises :class:`CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            self._model = pretrained(HiggsAudioV2ForConditionalGeneration, folder)
            self._codec = pretrained(_Codec, companion_folder(require_voice_codec(folder), folder))
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if self._tokenizer.chat_template is None:
            raise CannotSpeak(f"{folder} has no chat template, which writes the turns of a prompt: fetch it again")
        codebooks = self._model.config.num_codebooks
        if self._codec.config.num_quantizers != codebooks:
            raise CannotSpeak(
                f"the codec of {folder} has {self._codec.config.num_quantizers} codebooks, expected {codebooks}, as "
                "bosonai/higgs-audio-v2-tokenizer has"
            )
        self._delays = range(codebooks)
        self._ratios = list(self._codec.config.acoustic_model_config.upsampling_ratios)
        self._rate = self._codec.config.sample_rate / math.prod(self._ratios)
        self._took: Callable[[Any], None] = _ignored
        self._model.register_forward_pre_hook(self._look, with_kwargs=True)
        self._codes = {place.name: self._recorded(Path(place.style)) for place in voices if place.style is not None}
        """Of recordings: [steps, codebooks], as the model reads them."""

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, part: Part = keep_whole) -> bytes:
        """``speed`` is 1: the model has no other."""
        inputs = self._inputs(text, voice)
        longest = max(self._delays)
        room = self._model.config.max_position_embeddings - inputs["input_ids"].shape[1]
        if room <= longest:
            raise CannotSpeak(
                f"a sentence with its voice has {inputs['input_ids'].shape[1]} positions, and the model has "
                f"{self._model.config.max_position_embeddings}: expected a shorter recording of {voice.name}"
            )
        first, later = (max(1, round(seconds * self._rate)) for seconds in (_FIRST_SECONDS, _SECONDS))
        decoder = ContextDecoder(self._decoded, dac_context(self._ratios), math.prod(self._ratios))
        steps = _Steps(DelayedCodes(FrameParts(decoder, first, later, stop, part), self._delays, _NO_CODE))
        self._took = steps.take
        try:
            with drawing():
                wanted = int(longest_seconds(text) * self._rate) + longest + 1
                made = self._model.generate(**inputs, max_new_tokens=min(room, wanted))
                if not bool((made[0, -1] == self._model.config.audio_stream_eos_id).all()):
                    steps.take(made[0, -1])  # that no later step has read
                return steps.codes.rest()
        finally:
            self._took = _ignored

    def _look(self, _model: object, _given: object, inputs: dict[str, Any]) -> None:
        """Take the codes of the step before from what the model reads."""
        if inputs.get("input_ids") is None:
            self._took(inputs["audio_input_ids"][0, -1])

    def _decoded(self, codes: Any) -> Any:
        """The samples of codes, [1, frames, codebooks]. Of the last frames, some may be marks of the end."""
        within = codes.clip(0, self._model.config.audio_stream_bos_id - 1)
        return self._codec.decode(within.transpose(1, 2)).audio_values[0, 0]

    def _recorded(self, file: Path) -> Any:
        """The codes of a recording between marks, each codebook with its delay: [steps, codebooks]."""
        config = self._model.config
        wave = torch.from_numpy(read_recording(file, self._codec.config.sample_rate))
        with torch.inference_mode():
            codes = self._codec.encode(wave[None, None]).audio_codes[0]  # [codebooks, frames]
        begin, end = config.audio_stream_bos_id, config.audio_stream_eos_id
        longest = max(self._delays)
        rows = [
            torch.nn.functional.pad(
                torch.nn.functional.pad(row, (1 + delay, 0), value=begin), (0, 1 + longest - delay), value=end
            )
            for row, delay in zip(codes, self._delays, strict=True)
        ]
        return torch.stack(rows, dim=1)

    def _inputs(self, text: str, voice: VoicePlace) -> dict[str, Any]:
        """What ``generate`` takes: the conversation, with the codes of a recording."""
        config, tokenizer = self._model.config, self._tokenizer
        turns = [_turn("system", _SYSTEM), _turn("scene", _SCENE)]
        codes = self._codes.get(voice.name)
        if codes is not None:
            said = without_special(voice.transcript or "", tokenizer)
            turns += [_turn("user", said), {"role": "assistant", "content": [{"type": "audio"}]}]
        turns.append(_turn("user", without_special(text, tokenizer)))
        written = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        sound, delayed = (
            tokenizer.convert_ids_to_tokens(id) for id in (config.audio_token_id, config.audio_delay_token_id)
        )
        if codes is not None:
            longest = max(self._delays)
            written = written.replace(sound, sound * (len(codes) - longest) + delayed * longest)
        own = tokenizer.bos_token is not None and written.startswith(tokenizer.bos_token)
        ids = tokenizer(written, add_special_tokens=not own, return_tensors="pt")["input_ids"]
        places = int(((ids == config.audio_token_id) | (ids == config.audio_delay_token_id)).sum())
        if places != (0 if codes is None else len(codes)) or int(ids[0, -1]) != config.audio_bos_token_id:
            raise CannotSpeak(
                f"the chat template of {voice.path} does not write one {sound} for a recording and the beginning of a "
                "sound at its end: fetch it again"
            )
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if codes is not None:
            inputs |= {"audio_input_ids": codes[None], "audio_input_ids_mask": torch.ones(1, len(codes)).bool()}
        return inputs


class _Steps:
    """Takes the codes of each step; the first has marks of the beginning alone."""

    def __init__(self, codes: DelayedCodes) -> None:
        self.codes = codes
        self._begun = False

    def take(self, codes: Any) -> None:
        """``codes``: [codebooks]."""
        if self._begun:
            self.codes.take(codes)
        self._begun = True


def _ignored(_codes: object) -> None:
    """No sentence is made."""


def _turn(role: str, text: str) -> dict[str, object]:
    return {"role": role, "content": [{"type": "text", "text": text}]}
