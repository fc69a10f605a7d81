"""How turns reach a chat model that hears."""

from contextlib import aclosing

from stentor.engine.client.client import EngineUnavailable
from stentor.protocols.openai.sampling import SamplingFields

from ...asr.streaming import TextToken
from ...common.errors import Unavailable
from ...common.keys import Caller
from ...generation.transcription import ChatTranscriber, ChatTranscription, TranscriptionWish
from ...observability.realtime_figures import PassFigures
from .formats import MODEL_AUDIO
from .hypotheses import Hypothesis, TranscriptionSettings
from .interfaces import TokenProbability
from .transcribing import FINAL_PRIORITY, PARTIAL_PRIORITY


class ChatTurnTranscriber:
    """A :class:`.hypotheses.Transcribe` for one session."""

    def __init__(self, model: ChatTranscriber, passes: PassFigures, caller: Caller) -> None:
        """``passes`` is told of each."""
        self._model = model
        self._passes = passes
        self._caller = caller
        self._language: str | None = None
        """That the model has heard last."""

    async def __call__(self, pcm: bytes, settings: TranscriptionSettings, *, continued: str, final: bool) -> Hypothesis:
        only = settings.languages[0] if len(settings.languages) == 1 else None
        language = settings.language or only or (self._language if continued else None)
        sampling = SamplingFields(temperature=0.0, priority=FINAL_PRIORITY if final else PARTIAL_PRIORITY)
        wish = TranscriptionWish(language, settings.prompt, continued, sampling=sampling, logprobs=settings.logprobs)
        admission = self._model.chat.admission
        text, tokens = "", list[TextToken]()
        with self._passes.one("final" if final else "partial") as observed, admission.admit(0.0) as context:
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
