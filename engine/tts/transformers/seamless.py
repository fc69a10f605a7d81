"""SeamlessM4T: a translator writes the text in the voice's language, a second model its units of speech, and HiFi-GAN
makes the sound."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from transformers import AutoConfig, AutoTokenizer, SeamlessM4TForTextToSpeech, SeamlessM4Tv2ForTextToSpeech

from stentor.protocols.ipc.speech import VoicePlace

from ..backend import CannotSpeak, Part, Stop, keep_whole
from ..codec_weights import pcm_of
from .generation import Interruption, drawing, loading, pretrained, without_special

_TABLES: Final = (
    *("text_decoder_lang_to_code_id", "t2u_lang_code_to_id", "vocoder_lang_code_to_id"),
    *("id_to_text", "char_to_id"),
)
"""Fields of generation_config.json."""
_SPARE_TOKENS: Final = 16
_GROWTH: Final = 4
"""Most tokens of a translation for one of the text."""


class SeamlessSynthesizer:
    """One checkpoint, whose languages are the voices."""

    def __init__(self, voices: Sequence[VoicePlace], threads: int) -> None:
        """Load the checkpoint. Raises :class:`CannotSpeak`."""
        folder = Path(voices[0].path)
        with loading(folder, threads):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            second = AutoConfig.from_pretrained(folder, local_files_only=True).model_type == "seamless_m4t_v2"
            self._model = pretrained(SeamlessM4Tv2ForTextToSpeech if second else SeamlessM4TForTextToSpeech, folder)
            told = json.loads((folder / "generation_config.json").read_bytes())
            for table in _TABLES:  # which the library leaves out of a file that it has made of a config.json
                if table in told:
                    setattr(self._model.generation_config, table, told[table])
        self._longest: int = self._model.config.max_position_embeddings
        self._most: int = self._model.config.max_new_tokens or self._longest
        self._none: int = len(self._tokenizer("")["input_ids"])
        """Tokens of a text without words."""
        self._interruption = Interruption(self._model)

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, _part: Part = keep_whole) -> bytes:
        """``speed`` is 1: the model has no other."""
        ids = self._tokenizer(without_special(text, self._tokenizer), return_tensors="pt")["input_ids"]
        count = int(ids.shape[1])
        if count <= self._none:
            return b""
        if count > self._longest:
            raise CannotSpeak(f"a sentence has {count} tokens, and the model has places for {self._longest}")
        self._interruption.stop = stop
        most = min(self._most, _SPARE_TOKENS + _GROWTH * count)
        with drawing():
            wave, lengths = self._model.generate(ids, tgt_lang=voice.name, text_max_new_tokens=most)
        return pcm_of(wave.reshape(-1)[: int(lengths.reshape(-1)[0])])
