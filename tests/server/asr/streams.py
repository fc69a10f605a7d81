"""A streaming transcription model, and understands the made-up speech of the realtime tests exactly.

It writes a letter a position, as soon as it has heard a word to its end, and pads in between.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from stentor.engine.channel.arena import ArenaFull
from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import EngineReady, Finished, FinishReason, PromptDone, SequenceTokens
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.server.asr.stream_vocabulary import StreamVocabulary
from stentor.server.asr.streaming import StreamingTranscriptionModel
from stentor.tests.server.realtime.sounds import understood

BOS, EOS, PAD, WORD, LETTERS = 1, 2, 3, 4, 10
STEP = 1280
"""Samples of one position."""


def letter(token: int) -> bytes:
    return bytes([token - LETTERS]) if LETTERS <= token < LETTERS + 256 else b""


STREAMS = StreamVocabulary(BOS, EOS, PAD, letter, STEP, delay=2, left_pad=4)


class TranscribedStream:
    """One request: what has been appended, and what has been written of it."""

    def __init__(self, engine: "StreamingEngine", prompt: list[int], params: SamplingParams, streamed: bytes) -> None:
        self.params = params
        self.pcm = bytearray(streamed)
        self.ended = False
        self.aborted = False
        self._engine = engine
        self._position = len(prompt) - 1
        self._written = 0
        self._drawn = 0
        self._begun = False
        self._finished = False
        self._more = asyncio.Event()

    def append(self, pcm: bytes, *, last: bool = False) -> None:
        assert not self.ended
        if sum(len(stream.pcm) for stream in self._engine.streams) + len(pcm) > self._engine.arena_bytes:
            raise ArenaFull
        self.pcm += pcm
        self.ended = last
        self._more.set()

    def routed_experts(self, index: int, drawn: int) -> bytes:
        raise ValueError("nobody has asked for experts")

    def abort(self, index: int = -1) -> None:
        self.aborted = True
        self._more.set()

    @property
    def audio(self) -> bytes:
        """Without the silence before it."""
        return bytes(self.pcm[len(STREAMS.before) :])

    @property
    def live(self) -> bool:
        return not self._finished

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Any]:
        if self._finished:
            raise StopAsyncIteration
        while True:
            await asyncio.sleep(0)
            if self.aborted:
                return self._end("abort", [])
            if self._engine.error:
                return self._end("error", [])
            events: list[Any] = [] if self._begun else [PromptDone(0, 0, 0.0, 0.0, None)]
            ready = len(self.pcm) // (2 * STEP)
            if self._position < ready:
                self._begun = True
                token = self._draw()
                logprobs = None if self.params.logprobs is None else [TokenLogprobs(token, -0.5, 1, [])]
                events.append(SequenceTokens(0, 0, [token], logprobs))
                if token == EOS or self._drawn == self.params.max_tokens:
                    return self._end("stop" if token == EOS else "length", events)
                return events
            if self.ended:
                return self._end("stop", events)
            self._more.clear()
            await self._more.wait()

    def _draw(self) -> int:
        self._position += 1
        self._drawn += 1
        said = self._engine.said(bytes(self.pcm[: self._position * 2 * STEP]))
        if said is None:
            return EOS
        letters = said.encode()
        if self._written == len(letters):
            return (PAD, WORD)[self._drawn % 2]
        self._written += 1
        return LETTERS + letters[self._written - 1]

    def _end(self, reason: FinishReason, events: list[Any]) -> list[Any]:
        self._finished = True
        return [*events, Finished(0, 0, reason, None, "0xdead in worker.py" if reason == "error" else None)]


def whole_words(pcm: bytes) -> str:
    """Each after a space, its w with an accent: letters of one byte alone would hide a cut character."""
    said = "".join(f" {word}" for word in understood(pcm) if word.startswith("w"))
    return said.replace("w", "ẃ")


class StreamingEngine:
    """Takes the place of the engine client of such a model."""

    def __init__(self, *, max_model_len: int = 2000, said: Callable[[bytes], str | None] = whole_words) -> None:
        self.ready: EngineReady | None = EngineReady(64, 16, max_model_len, [], [])
        self.stalled: str | None = None
        self.failure: str | None = None
        self.error = False
        """Whether every request fails."""
        self.arena_bytes = 1 << 40
        """Of audio that requests may have brought together; nothing is given back."""
        self.said = said
        """Of audio so far; None ends the transcript."""
        self.streams: list[TranscribedStream] = []
        self.salts: list[str] = []

    def submit(self, request: EngineRequest) -> TranscribedStream:
        if self.failure is not None:
            raise EngineUnavailable(self.failure)
        assert request.prompt == STREAMS.prompt
        assert request.streamed is not None
        assert len(request.seeds) == 1
        assert request.params.temperature == 0.0
        if len(request.streamed) > self.arena_bytes:
            raise ArenaFull
        self.salts.append(request.salt)
        self.streams.append(TranscribedStream(self, request.prompt, request.params, request.streamed))
        return self.streams[-1]

    @property
    def live(self) -> int:
        return sum(stream.live for stream in self.streams)


def streaming_model(engine: StreamingEngine | None = None) -> StreamingTranscriptionModel:
    return StreamingTranscriptionModel(("voxtral",), engine or StreamingEngine(), STREAMS)
