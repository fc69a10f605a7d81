"""Prompt and token texts of a streaming transcription model.

Its tokenizer is Mistral's own file (``tekken.json``) or the one of the ``tokenizers`` library. The prompt is BOS and a
streaming pad for each position of the silence before the audio, and for each of the delay of text behind its audio.
Silence follows the audio, so that its last word is written too.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from stentor.engine.client.request import EngineRequest
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.speech.voxtral_realtime import (
    VoxtralRealtimeConfig,
    voxtral_realtime_config_from_hf,
)
from stentor.protocols.ipc.actors import EngineEvent, SequenceTokens
from stentor.protocols.ipc.audio import SAMPLE_BYTES, SAMPLE_RATE
from stentor.protocols.ipc.sampling import SamplingParams

from ..text.errors import TokenizerError
from ..text.tokenizers.loading import load_tokenizer
from ..text.tokenizers.tekken import TEKKEN, Tekken
from .streaming import Transcribed, written

_FEWEST_POSITIONS: Final = 12
"""Positions that must remain for audio: about a second."""
_BOS, _EOS, _PAD = "<s>", "</s>", "[STREAMING_PAD]"
_LEFT_PAD: Final = 32
"""Positions of silence before the audio, where the tokenizer does not say: those of the published models."""
_LONGEST_WORD: Final = 10
"""Positions that the last word may take after its audio, as in Mistral's own code."""


class StreamVocabulary(msgspec.Struct, frozen=True):
    """A :class:`.streaming.StreamForm`."""

    bos: int
    eos: int
    pad: int
    """Sampled while there is nothing to write."""
    token_bytes: Callable[[int], bytes]
    """Bytes of a token's text; empty for special or unknown tokens."""
    step: int
    """Samples of one position."""
    delay: int
    """Positions by which text comes after its audio."""
    left_pad: int
    """Positions of silence before the audio."""

    @property
    def prompt(self) -> list[int]:
        return [self.bos] + [self.pad] * (self.left_pad + self.delay)

    @property
    def positions_a_second(self) -> float:
        return SAMPLE_RATE / self.step

    @property
    def has_times(self) -> bool:
        return False

    @property
    def late(self) -> int:
        return 0

    def room(self, max_len: int) -> int:
        return max(0, max_len - 1 - self.padding) * self.step_bytes

    def request(self, max_len: int, language: str | None, *, logprobs: bool) -> EngineRequest:
        params = SamplingParams(
            max_tokens=max_len - len(self.prompt),
            temperature=0.0,
            eos_token_ids=(self.eos,),
            logprobs=0 if logprobs else None,
        )
        return EngineRequest(self.prompt, params, [0], streamed=self.before)

    def read(self, event: EngineEvent, before: int) -> Transcribed | None:
        if not isinstance(event, SequenceTokens):
            return None
        # its text comes later than the audio by the delay, which the prompt is longer by
        return Transcribed(before + len(event.tokens), event.tokens, written(event, self.token_bytes))

    @property
    def step_bytes(self) -> int:
        return self.step * SAMPLE_BYTES

    @property
    def before(self) -> bytes:
        """The silence before the audio."""
        return bytes(self.left_pad * self.step_bytes)

    @property
    def right_pad(self) -> int:
        """Whole positions of silence after the audio."""
        return self.delay + 1 + _LONGEST_WORD

    @property
    def padding(self) -> int:
        """Positions of silence around the audio, except for filling its last one."""
        return self.left_pad + self.right_pad

    def after(self, size: int) -> bytes:
        """The silence to add after ``size`` bytes of audio."""
        return bytes(-size % self.step_bytes + self.right_pad * self.step_bytes)


def stream_vocabulary_of(folder: Path) -> StreamVocabulary:
    """Some 100 ms, so call it in a thread. Raises :class:`CheckpointError`."""
    try:
        config = voxtral_realtime_config_from_hf(read_json(folder / "config.json"))
    except ConfigError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}.") from error
    if (folder / TEKKEN).is_file():
        return _of_tekken(folder / TEKKEN, config)
    if (folder / "tokenizer.json").is_file():
        return _of_tokenizer(folder, config)
    raise CheckpointError(
        f"There is no tokenizer in {folder}: a Voxtral Realtime needs its tekken.json or a tokenizer.json. "
        "Fetch the model again."
    )


def _of_tekken(file: Path, config: VoxtralRealtimeConfig) -> StreamVocabulary:
    try:
        found = Tekken(file)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    first, words, audio = found.first, found.words, found.audio
    if audio.transcription_delay_ms is not None:
        delay = audio.transcription_delay_ms * SAMPLE_RATE / 1000 / config.step
        if delay != config.delay:
            raise CheckpointError(
                f"{file.name} says that text comes {delay:g} positions after its audio, and config.json "
                f"{config.delay} (default_num_delay_tokens): both must be the same. Fetch the model again."
            )

    def token_bytes(id: int) -> bytes:
        return words[id - first] if first <= id < first + len(words) else b""

    left_pad = _LEFT_PAD if audio.streaming_n_left_pad_tokens is None else audio.streaming_n_left_pad_tokens
    return _made(file, found.special, token_bytes, config, left_pad)


def _of_tokenizer(folder: Path, config: VoxtralRealtimeConfig) -> StreamVocabulary:
    try:
        tokenizer = load_tokenizer(folder)
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    if tokenizer.shape.kind != "byte_level":
        raise CheckpointError(
            f"{folder / 'tokenizer.json'} has no byte-level tokens: it is not that of a Voxtral Realtime. "
            "Fetch the model again."
        )
    added = tokenizer.backend.get_added_tokens_decoder()
    names: dict[str, Any] = {token.content: id for id, token in added.items()}

    def token_bytes(id: int) -> bytes:
        return b"" if id in tokenizer.special_ids else tokenizer.token_bytes(id)

    return _made(folder / "tokenizer.json", names, token_bytes, config, _LEFT_PAD)


def _made(
    file: Path,
    special: Mapping[str, int],
    token_bytes: Callable[[int], bytes],
    config: VoxtralRealtimeConfig,
    left_pad: int,
) -> StreamVocabulary:
    missing = [name for name in (_BOS, _EOS, _PAD) if name not in special]
    if missing:
        raise CheckpointError(
            f"{file} has no token {missing[0]}: it is not the tokenizer of a Voxtral Realtime. Fetch the model again."
        )
    beyond = [name for name in (_BOS, _EOS, _PAD) if not 0 <= special[name] < config.vocab_size]
    made = StreamVocabulary(
        special[_BOS], special[_EOS], special[_PAD], token_bytes, config.step, config.delay, left_pad
    )
    if beyond or left_pad < 0 or made.padding + _FEWEST_POSITIONS >= config.max_position:
        raise CheckpointError(
            f"{file} is not the tokenizer of the model beside it, which has {config.vocab_size} tokens and takes "
            f"{config.max_position} positions. Fetch the model again."
        )
    return made
