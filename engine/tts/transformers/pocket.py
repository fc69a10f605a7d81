"""Pocket TTS, and Phonon, a relative of it: audio comes while the sentence is made.

A voice is a prompt: latents of a recording. Its keys and values are computed once, and each sentence continues a copy.
"""

import copy
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import (
    AutoTokenizer,
    DynamicCache,
    GradiumPhononTTSForConditionalGeneration,
    PocketTTSForConditionalGeneration,
    PocketTTSProcessor,
)
from transformers.models.pocket_tts.feature_extraction_pocket_tts import PocketTTSFeatureExtractor

from stentor.protocols.ipc.speech import VoicePlace

from ...models.transformers.names import with_cache
from ..backend import CannotSpeak, Part, Stop, keep_whole
from ..recordings import PROMPT_SECONDS, read_recording
from .codec_stream import CodecStream, load_codec
from .frames import FrameParts
from .generation import MOST_SECONDS, drawing, loading, only_tensor, pretrained, without_special

_FIRST_FRAMES: Final = 2
"""Frames of the first part; a frame lasts 80 ms."""
_FRAMES: Final = 4
"""Frames of other parts."""
_PREFIXES: Final = 8
"""Voices whose keys and values are kept, about 18 MB each."""
_SETTINGS: Final = ("short_text_max_words", "frames_after_eos_short_text", "frames_after_eos", "fade_in_duration")


class _Pocket(PocketTTSForConditionalGeneration):
    """Tells each latent to :attr:`on_latent` while ``generate`` runs."""

    on_latent: Callable[[Any], None]

    def sample_latent(self, condition: Any, noise: Any, num_flow_steps: int) -> Any:
        latent = super().sample_latent(condition, noise, num_flow_steps)
        self.on_latent(latent)
        return latent


class _Phonon(GradiumPhononTTSForConditionalGeneration):
    """As :class:`_Pocket`."""

    on_latent: Callable[[Any], None]

    def sample_latent(self, condition: Any, noise: Any, num_flow_steps: int) -> Any:
        latent = super().sample_latent(condition, noise, num_flow_steps)
        self.on_latent(latent)
        return latent


_CLASSES: Final = {"pocket_tts": _Pocket, "gradium_phonon_tts": _Phonon}
"""By ``model_type``."""


class PocketSynthesizer:
    """One checkpoint with its prompts."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint and the first voice. Raises :class:`CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            described = json.loads((folder / "config.json").read_bytes())
            self._model = pretrained(_CLASSES[described["model_type"]], folder)
            codec = load_codec(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            settings = json.loads((folder / "processor_config.json").read_bytes())
            self._processor: Any = PocketTTSProcessor(
                PocketTTSFeatureExtractor.from_pretrained(folder, local_files_only=True),
                tokenizer,
                audio_tokenizer=codec,
                chat_template=tokenizer.chat_template,
                **{name: settings[name] for name in _SETTINGS if name in settings},
            )
        self._codec = codec
        self._fade = int(self._processor.fade_in_duration * codec.config.sampling_rate)
        self._prefixes: OrderedDict[str, _Prefix] = OrderedDict()
        """The last one used is the last."""
        self._latents = {place.name: self._read_prompt(place) for place in voices}
        self._prefix(voices[0])

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, part: Part = keep_whole) -> bytes:
        """``speed`` is 1: the model has no other."""
        prefix = self._prefix(voice)
        inputs = self._inputs(text, prefix.latents)
        frames = FrameParts(CodecStream(self._codec, self._projected), _FIRST_FRAMES, _FRAMES, stop, part, self._fade)
        self._model.on_latent = frames.take
        ids = inputs["input_ids"][:, prefix.length :]
        with drawing():
            self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **with_cache(self._model.forward, copy.deepcopy(prefix.cache)),
                frames_after_eos=inputs["frames_after_eos"],
                max_new_tokens=self._most_frames(ids),
            )
            return frames.rest()

    def _projected(self, latents: Any) -> Any:
        return self._codec.latent_proj(self._model.denormalize_latents(latents).transpose(1, 2))

    def _inputs(self, text: str, latents: Any) -> Any:
        """The processor's inputs of one sentence after a voice's prompt."""
        text = without_special(text, self._processor.tokenizer)
        content = [{"type": "audio"}, {"type": "text", "text": text}]
        prompt = self._processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
        return self._processor(text=prompt, audio_prompt_latents=[latents], return_tensors="pt")

    def _most_frames(self, ids: Any) -> int:
        """``generate``'s own bound, and ours."""
        rate = self._model.config.frame_rate
        text_tokens = ids.shape[1] - 1  # the last is the place of the first frame
        own: int = math.ceil((text_tokens / 3 + 2) * rate)
        return min(own, int(MOST_SECONDS * rate))

    def _prefix(self, voice: VoicePlace) -> "_Prefix":
        if (known := self._prefixes.pop(voice.name, None)) is None:
            known = self._make_prefix(voice)
        self._prefixes[voice.name] = known
        if len(self._prefixes) > _PREFIXES:
            self._prefixes.popitem(last=False)
        return known

    def _make_prefix(self, voice: VoicePlace) -> "_Prefix":
        latents = self._latents[voice.name]
        ids = self._inputs("A", latents)["input_ids"]
        places = (ids[0] == self._model.config.audio_prompt_token_id).nonzero().flatten()
        if len(places) != len(latents) or ids[0, -1] != self._model.config.audio_bos_token_id:
            raise CannotSpeak(
                f"the chat template of {voice.path} does not write a voice, then the text, then the place of audio: "
                "serve a checkpoint as transformers saves it"
            )
        length = int(places[-1]) + 1
        decoder = self._model.model
        cache = DynamicCache(config=decoder.config)
        with torch.inference_mode():
            decoder(
                input_ids=ids[:, :length],
                audio_prompt_latents=latents[None],
                use_cache=True,
                **with_cache(decoder.forward, cache),
            )
        return _Prefix(latents, length, cache)

    def _read_prompt(self, place: VoicePlace) -> Any:
        """The latents of a voice's prompt: [frames, dim]."""
        file = Path(place.style or "")
        if file.suffix == ".wav":
            latents = self._encode(file)
        else:
            latents = only_tensor(file, "the latents of a recording")
            latents = latents[0] if latents.ndim == 3 and len(latents) == 1 else latents
        config = self._model.config
        dim = getattr(config, "audio_prompt_dim", config.latent_dim)
        most = int(PROMPT_SECONDS * self._model.config.frame_rate) + 1
        if latents.ndim != 2 or latents.shape[1] != dim or not 0 < len(latents) <= most:
            raise CannotSpeak(
                f"{file} holds a tensor of shape {[*latents.shape]}, where latents of a recording are expected: "
                f"[frames, {dim}] with up to {most} frames"
            )
        return latents.float()

    def _encode(self, file: Path) -> Any:
        """The latents of a recording."""
        if self._codec.encoder is None:
            raise CannotSpeak(f"{file} is a recording, and the checkpoint's codec has no encoder: use stored latents")
        target = self._codec.config.sampling_rate
        samples = read_recording(file, target)
        found = self._processor.feature_extractor(samples, sampling_rate=target)
        with torch.inference_mode():
            encoded = self._codec.encode(found["input_values"], found["padding_mask"])
        return encoded.latents[0][encoded.latents_mask[0].bool()]


class _Prefix(NamedTuple):
    latents: Any
    length: int
    """Positions."""
    cache: Any
    """Keys and values of transformers' modules; to be copied."""
