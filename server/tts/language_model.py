"""A language model that speaks: its engine draws a sentence's codes, and the speech process decodes them meanwhile.

::

    text → prompt → engine: frames of codes, under a grammar → chunks → codec → samples

All sentences that are wanted are in the engine at once, batched like any other requests. Both halves survive a crash:
the engine's client submits a lost sequence again with the codes that were delivered, and the speech process's client
sends a lost chunk to the next process. Chunks say all that their samples depend on, so nothing else is remembered.
"""

import math
import os
import time
from collections.abc import Mapping
from typing import Final, Protocol

from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.request import EngineRequest
from stentor.engine.tts.backend import Part
from stentor.engine.tts.client import SentenceFailed, SpeechClient
from stentor.engine.tts.codecs import Codec
from stentor.protocols.ipc.actors import Finished, SequenceTokens
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.speech import SpeechPiece

from ..common.errors import Unavailable, generation_error
from ..text.output.generation import ModelEngine
from ..text.pool import TokenizerPool
from .code_chunks import CodeChunks
from .families import Reference, SpeechFamily
from .prompt_writer import CodeWords, Writer
from .sentences import weight
from .speaking import Origin, Speaking

AT_ONCE: Final = 256
"""Sentences in the engine, whose queue holds those that its rows have no room for."""
_LEAST_SECONDS: Final = 4.0
_CHARS_A_SECOND: Final = 5.0
"""Speech takes a third of it: beyond this the model repeats itself, or has not noticed the end."""
MOST_SECONDS: Final = 40.0


class SpeakingEngine(ModelEngine, Protocol):
    """See :class:`stentor.engine.client.client.EngineClient`."""

    @property
    def stalled(self) -> str | None: ...

    @property
    def failure(self) -> str | None: ...


class LanguageModelSpeech:
    """A :class:`.model.Synthesis` by an engine and a codec."""

    at_once: Final = AT_ONCE

    def __init__(
        self,
        family: SpeechFamily,
        codec: Codec,
        words: CodeWords,
        pool: TokenizerPool,
        engine: SpeakingEngine,
        process: SpeechClient,
        references: Mapping[str, Reference],
        language: str = "",
    ) -> None:
        """``references`` are voices by name; ``language``: of phonemes, for a family that reads them."""
        self.tags: Final = family.tags
        self._family = family
        self._codec = codec
        self._words = words
        self._engine = engine
        self._process = process
        self._references = references
        self._writer = Writer(words, pool, process, language if family.phonemes else "")
        self._pool = pool

    @property
    def ready(self) -> bool:
        return self._engine.ready is not None

    @property
    def stalled(self) -> str | None:
        return self._engine.stalled

    @property
    def failure(self) -> str | None:
        return self._engine.failure

    def close(self) -> None:
        self._pool.close()

    async def make(self, text: str, speaking: Speaking, on_part: Part) -> SpeechPiece:
        """Cancelling it ends the sequence."""
        began = time.monotonic()
        request = await self._request(text, speaking.voice, speaking.origin)
        try:
            stream = self._engine.submit(request)
        except EngineUnavailable as error:
            raise Unavailable("The speech model is not available; send the request again.", "failed") from error
        chunks, finished, drawn = CodeChunks(self._codec), None, 0
        rest = b""
        try:
            async for events in stream:
                for event in events:
                    match event:
                        case SequenceTokens():
                            codes = [token for token in event.tokens if token != self._words.end]
                            chunks.add([self._words.code(token, drawn + at) for at, token in enumerate(codes)])
                            drawn += len(codes)
                        case Finished():
                            finished = event
                            chunks.end()
                if finished is not None and finished.reason not in ("stop", "length"):
                    raise generation_error(finished)
                while (chunk := chunks.take()) is not None:
                    made = await self._process.decode(chunk.codes, first=chunk.first, skip=chunk.skip, keep=chunk.keep)
                    if chunk.last:
                        rest = made.pcm
                    else:
                        on_part(made.pcm)
        finally:
            if finished is None:
                stream.abort()
        if finished is None:
            raise generation_error(None)
        return SpeechPiece(0, rest, time.monotonic() - began)

    async def _request(self, text: str, voice: str, origin: Origin) -> EngineRequest:
        """Raises :class:`SentenceFailed`."""
        family, ready = self._family, self._engine.ready
        if ready is None:
            raise Unavailable("The speech model is not ready; send the request again.", "failed")
        prompt = await family.write(self._writer, text, voice, self._references.get(voice))
        room = ready.max_model_len - len(prompt)
        per = self._codec.frame_codes
        if room < per:
            raise SentenceFailed(
                f"its prompt has {len(prompt)} tokens, and the speech model has room for {ready.max_model_len}: "
                "expected a shorter reference voice, or a higher --speech-max-model-len"
            )
        frames = math.ceil(self._codec.frames_a_second * longest_seconds(text))
        most = min(room, frames * per)
        sampling = family.sampling
        params = SamplingParams(
            max_tokens=most,
            min_tokens=min(most, sampling.min_frames * per),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            repetition_penalty=sampling.repetition_penalty,
            eos_token_ids=(self._words.end,),
        )
        seed = int.from_bytes(os.urandom(8), "little")
        return EngineRequest(prompt, params, [seed], salt=origin.salt, name=origin.name, grammar=self._words.grammar)


def longest_seconds(text: str) -> float:
    """How long the speech of a text may be."""
    return min(MOST_SECONDS, _LEAST_SECONDS + weight(text) / _CHARS_A_SECOND)
