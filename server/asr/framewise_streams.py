"""Streamed audio of a transcription model that decodes frame by frame: a position of the engine for each chunk, whose
tokens come as soon as it has been computed."""

import struct
from typing import Final

import msgspec

from stentor.engine.client.request import EngineRequest
from stentor.engine.model_config.speech.framewise import STREAM_SECONDS
from stentor.protocols.ipc.actors import EngineEvent, PromptPart
from stentor.protocols.ipc.audio import SAMPLE_BYTES, SAMPLE_RATE
from stentor.protocols.ipc.inputs import StreamShape
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams

from .framewise_vocabulary import FramewiseVocabulary
from .streaming import TextToken, Transcribed

_ROW: Final = struct.Struct("<4f")
"""The token, its first position, the one behind its last, its log-probability."""


class FramewiseStreams(msgspec.Struct, frozen=True):
    """A :class:`.streaming.StreamForm`."""

    vocabulary: FramewiseVocabulary
    shape: StreamShape

    @property
    def step_bytes(self) -> int:
        return self.shape.step * SAMPLE_BYTES

    @property
    def positions_a_second(self) -> float:
        return self.vocabulary.positions_a_second

    @property
    def has_times(self) -> bool:
        return False

    @property
    def late(self) -> int:
        return 0

    def room(self, max_len: int) -> int:
        """What follows the last whole chunk takes a position too."""
        return max(0, max_len - 1) * self.step_bytes

    def request(self, max_len: int, language: str | None, *, logprobs: bool) -> EngineRequest:
        (number,) = self.vocabulary.beginning(language, "transcribe", timestamps=False)
        count = min(max_len, STREAM_SECONDS * SAMPLE_RATE // self.shape.step + 1)
        prompt = [number] + [0] * (count - 1)
        return EngineRequest(prompt, SamplingParams(max_tokens=0), [0], streamed=b"", pooling=Pooling("transcribe"))

    def after(self, size: int) -> bytes:
        return b""

    def read(self, event: EngineEvent, before: int) -> Transcribed | None:
        if not isinstance(event, PromptPart):
            return None
        tokens, text = [], []
        for token, _, _, logprob in _ROW.iter_unpack(event.pooled):
            tokens.append(int(token))
            if self.vocabulary.is_text(int(token)):
                text.append(TextToken(int(token), self.vocabulary.tokenizer.bytes_of(int(token)), logprob))
        return Transcribed(event.computed, tokens, text)
