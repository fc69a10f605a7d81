"""What requests of Kyutai's speech-to-text models look like, and their texts.

A stream begins with one token, which hears nothing. Then each position hears a frame, and text comes with the delay
that the processor's file names. Silence goes before the audio where that says so, and follows it, so that its last
word is written too.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from stentor.engine.client.request import EngineRequest
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.config_fields import ConfigError, Fields
from stentor.engine.model_config.speech.kyutai import CODEC_RATE, kyutai_config_from_hf
from stentor.protocols.ipc.actors import EngineEvent, SequenceTokens
from stentor.protocols.ipc.audio import SAMPLE_BYTES, SAMPLE_RATE
from stentor.protocols.ipc.sampling import SamplingParams

from ..text.errors import TokenizerError
from ..text.tokenizers.loading import load_tokenizer
from .streaming import Transcribed, written

_PROCESSOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")
_FURTHER_SECONDS: Final = 1.0
"""Of silence behind the delay, as transformers' feature extractor adds."""
_LONGEST_SECONDS: Final = 60
"""Of delay, and of silence before the audio."""
_WORD: Final = 0
"""Written before a word, and no text, as the pad is."""


class KyutaiStreams(msgspec.Struct, frozen=True):
    """A :class:`.streaming.StreamForm`."""

    begin: int
    """The first token of each stream."""
    ends: tuple[int, ...]
    """Tokens that end a transcript; the published models have none."""
    token_bytes: Callable[[int], bytes]
    """Bytes of a token's text; empty for special or unknown tokens."""
    step: int
    """Samples of one position."""
    delay: int
    """Samples by which text comes after its audio."""
    silence: int
    """Samples of silence before the audio."""

    @property
    def step_bytes(self) -> int:
        return self.step * SAMPLE_BYTES

    @property
    def positions_a_second(self) -> float:
        return SAMPLE_RATE / self.step

    @property
    def has_times(self) -> bool:
        return True

    @property
    def late(self) -> int:
        return 1 + -(-(self.silence + self.delay) // self.step)

    @property
    def _behind(self) -> int:
        """Samples of silence behind the audio, except for filling the last position."""
        return self.delay + round(_FURTHER_SECONDS * SAMPLE_RATE)

    def room(self, max_len: int) -> int:
        padding = -(-(self.silence + self._behind) // self.step)
        return max(0, max_len - 1 - padding) * self.step_bytes

    def request(self, max_len: int, language: str | None, *, logprobs: bool) -> EngineRequest:
        params = SamplingParams(
            max_tokens=max_len - 1, temperature=0.0, eos_token_ids=self.ends, logprobs=0 if logprobs else None
        )
        return EngineRequest([self.begin], params, [0], streamed=bytes(self.silence * SAMPLE_BYTES))

    def after(self, size: int) -> bytes:
        samples = self.silence + size // SAMPLE_BYTES + self._behind
        return bytes((self._behind + -samples % self.step) * SAMPLE_BYTES)

    def read(self, event: EngineEvent, before: int) -> Transcribed | None:
        if not isinstance(event, SequenceTokens):
            return None

        def time(place: int) -> float:
            return max(0.0, ((before + place) * self.step - self.silence - self.delay) / SAMPLE_RATE)

        return Transcribed(before + len(event.tokens), event.tokens, written(event, self.token_bytes, time))


def kyutai_streams_of(folder: Path) -> KyutaiStreams:
    """Some 100 ms, so call it in a thread. Raises :class:`CheckpointError`."""
    settings = read_json(folder / "config.json")
    try:
        config = kyutai_config_from_hf(settings)
        pad = Fields(settings).token_id("pad_token_id")
    except ConfigError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}.") from error
    try:
        tokenizer = load_tokenizer(folder)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    if tokenizer.vocab_size > config.begin_token:
        raise CheckpointError(
            f"The tokenizer in {folder} has {tokenizer.vocab_size} tokens, and the model beside it "
            f"{config.begin_token}. Fetch the model again."
        )
    silent = {*tokenizer.special_ids, _WORD, 3 if pad is None else pad}
    silence, delay = _delays(folder)
    return KyutaiStreams(
        config.begin_token,
        config.eos_token_ids,
        lambda token: b"" if token in silent else tokenizer.token_bytes(token),
        config.step,
        delay,
        silence,
    )


def _delays(folder: Path) -> tuple[int, int]:
    """Samples at 16 kHz of silence before the audio, and of the text's delay."""
    file = next((folder / name for name in _PROCESSOR_FILES if (folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(
            f"There is no {' and no '.join(_PROCESSOR_FILES)} in {folder}, which says how long after its audio text "
            "comes. Fetch the model again."
        )
    found: Mapping[str, object] = read_json(file)
    inner = found.get("feature_extractor", found)
    fields = Fields(inner if isinstance(inner, Mapping) else {})
    try:
        rate = fields.integer("sampling_rate", CODEC_RATE)
        silence, delay = (fields.number(f"audio_{name}_seconds") for name in ("silence_prefix", "delay"))
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}.") from error
    if rate != CODEC_RATE or not 0 <= silence <= _LONGEST_SECONDS or not 0 <= delay <= _LONGEST_SECONDS:
        raise CheckpointError(
            f"{file} says {rate} Hz, {silence:g} s of silence before the audio and a delay of {delay:g} s, expected "
            f"{CODEC_RATE} Hz and 0 to {_LONGEST_SECONDS} s."
        )
    return round(silence * SAMPLE_RATE), round(delay * SAMPLE_RATE)
