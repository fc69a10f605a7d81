"""Sends turns to the transcription model, or to a chat model that transcribes."""

import codecs
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from stentor.engine.client.errors import EngineUnavailable
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.openai.sampling import SamplingFields

from ....asr.model import TranscriptionModel
from ....asr.options import TranscriptionOptions
from ....asr.streaming import TextToken
from ....asr.transcribe import TranscribedTurn, transcribe_turn
from ....common.errors import Unavailable
from ....common.keys import Caller
from ....generation.transcription import ChatTranscriber, ChatTranscription, TranscriptionWish
from ....observability.realtime_figures import PassFigures
from ..common.formats import MODEL_AUDIO
from ..common.interfaces import TokenProbability
from .hypotheses import Hypothesis, TranscriptionSettings

FINAL_PRIORITY: Final = 0
PARTIAL_PRIORITY: Final = 1
"""Partial transcripts have lower priority than final ones."""


class ModelTranscriber:
    """A :class:`.hypotheses.Transcribe` for one session."""

    def __init__(
        self,
        model: TranscriptionModel,
        passes: PassFigures,
        salt: str = "",
        name: str = "",
        adapter_of: Callable[[str], AdapterRef | None] = lambda name: None,
    ) -> None:
        """``passes`` records each pass, ``salt`` separates callers' encodings, ``name`` is for logs. ``adapter_of``
        finds the LoRA adapter of a session's model name."""
        self._adapter_of = adapter_of
        self._model = model
        self._salt = salt
        self._name = name
        self._passes = passes

    async def __call__(self, pcm: bytes, settings: TranscriptionSettings, *, continued: str, final: bool) -> Hypothesis:
        model = self._model
        options = TranscriptionOptions(
            language=settings.language,
            languages=settings.languages,
            prompt=settings.prompt,
            priority=FINAL_PRIORITY if final else PARTIAL_PRIORITY,
            salt=self._salt,
            name=self._name,
            adapter=self._adapter_of(settings.model) if settings.model else None,
        )
        after = model.vocabulary.encode(continued) if continued else []
        with self._passes.one("final" if final else "partial") as observed:
            observed.audio_seconds = len(pcm) / MODEL_AUDIO.bytes_a_second
            try:
                turn = await transcribe_turn(model, pcm, options, after=after)
            except EngineUnavailable as error:
                raise Unavailable(str(error), "engine_unavailable") from error
        return _hypothesis(model, turn, len(after), tokens=settings.logprobs)


def _hypothesis(model: TranscriptionModel, turn: TranscribedTurn, given: int, *, tokens: bool) -> Hypothesis:
    drawn = turn.tokens[given:]
    data = [
        model.vocabulary.tokenizer.token_bytes(token) if model.vocabulary.is_text(token) else b"" for token in drawn
    ]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece) for piece in data]
    text = "".join(texts) + decoder.decode(b"", True)
    if not tokens:
        return Hypothesis(text)
    probabilities = [
        TokenProbability(piece.decode("utf-8", "replace"), logprob, list(piece))
        for piece, logprob in zip(data, turn.logprobs, strict=False)
        if piece
    ]
    return Hypothesis(text, probabilities)


class ChatTurnTranscriber:
    """A :class:`.hypotheses.Transcribe` for one session."""

    def __init__(self, model: ChatTranscriber, passes: PassFigures, caller: Caller) -> None:
        """``passes`` records each pass."""
        self._model = model
        self._passes = passes
        self._caller = caller
        self._language: str | None = None
        """The last detected language."""

    async def __call__(self, pcm: bytes, settings: TranscriptionSettings, *, continued: str, final: bool) -> Hypothesis:
        only = settings.languages[0] if len(settings.languages) == 1 else None
        language = settings.language or only or (self._language if continued else None)
        sampling = SamplingFields(temperature=0.0, priority=FINAL_PRIORITY if final else PARTIAL_PRIORITY)
        chat = self._model.chat
        adapter = chat.registry.adapter_of(settings.model) if settings.model else None
        wish = TranscriptionWish(
            language, settings.prompt, continued, sampling=sampling, logprobs=settings.logprobs, adapter=adapter
        )
        text, tokens = "", list[TextToken]()
        with (
            self._passes.one("final" if final else "partial") as observed,
            chat.admission.admit(0.0, chat.role) as context,
        ):
            observed.audio_seconds = len(pcm) / MODEL_AUDIO.bytes_a_second
            transcription = ChatTranscription(self._model, wish, self._caller, context)
            try:
                async with aclosing(transcription.transcribe_window(pcm)) as pieces:
                    async for piece in pieces:
                        text += piece.text
                        tokens += piece.tokens
            except EngineUnavailable as error:
                raise Unavailable(str(error), "engine_unavailable") from error
        self._language = transcription.language or self._language
        if not settings.logprobs:
            return Hypothesis(text)
        told = [
            TokenProbability(token.bytes.decode("utf-8", "replace"), token.logprob or 0.0, list(token.bytes))
            for token in tokens
            if token.bytes
        ]
        return Hypothesis(text, told)
