"""``/v1/audio/transcriptions`` and ``translations`` by a chat model: a file is a few chat requests."""

from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from stentor.protocols.common.errors import refused
from stentor.protocols.openai.sampling import SamplingFields
from stentor.protocols.openai.transcription import TranscriptionForm, TranslationForm

from ...asr.options import Chunking
from ...asr.streaming import BYTES_A_SECOND
from ...audio.decode import AudioDecoder
from ...generation.transcription import ChatTranscriber, ChatTranscription, TranscriptionWish
from ...http.sse import EventStream
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from .streamed_transcript_encoder import PieceStream, whole_diarized, whole_json, whole_text
from .streamed_transcriptions import check_untimed, refuse_translation
from .transcript_events import TranscriptEvents
from .transcription_encoder import JSON, TEXT, TranscriptShape, transcript


class ResolvedChat(msgspec.Struct, frozen=True):
    """A form's request to such a model."""

    form: TranslationForm
    model: ChatTranscriber
    wish: TranscriptionWish


def resolve_chat(form: TranslationForm, model: ChatTranscriber, chunking: Chunking | None = None) -> ResolvedChat:
    """Raises BadRequest for features that the model lacks."""
    timed = _is_timed(form, model)
    if not timed and not (model.asking.diarizes and form.response_format == "diarized_json"):
        check_untimed(form, model.served_names[0])
    sampling = SamplingFields(
        temperature=form.temperature,
        top_p=form.top_p,
        top_k=form.top_k,
        min_p=form.min_p,
        repetition_penalty=form.repetition_penalty,
        presence_penalty=form.presence_penalty,
        frequency_penalty=form.frequency_penalty,
        seed=form.seed,
        max_tokens=form.max_completion_tokens,
        use_beam_search=form.use_beam_search,
        best_of=form.n,
        length_penalty=form.length_penalty,
    )
    adapter = model.chat.registry.adapter_of(form.model) if form.model else None
    if not isinstance(form, TranscriptionForm):
        if not model.asking.says_to_translate:
            raise refuse_translation(model.served_names[0])
        form.check_english()
        wish = TranscriptionWish(None, form.hint, translate=True, sampling=sampling, adapter=adapter)
        return ResolvedChat(form, model, wish)
    if form.wants_logprobs and model.asking.diarizes:
        why = "the model writes times and speakers between its words, which have no log-probabilities; leave it out"
        raise refused("include", why, "unsupported_value")
    wish = TranscriptionWish(
        _language(form, model),
        form.hint,
        sampling=sampling,
        logprobs=form.wants_logprobs,
        chunking=chunking,
        adapter=adapter,
        timed=timed,
    )
    if timed and model.aligner is not None:
        model.aligner.check(wish.language, "language")
    return ResolvedChat(form, model, wish)


def _is_timed(form: TranslationForm, model: ChatTranscriber) -> bool:
    """Whether the answer has times from an aligner, which no stream has."""
    transcribes = isinstance(form, TranscriptionForm) and not form.stream and not model.asking.diarizes
    return transcribes and model.aligner is not None and form.response_format in ("verbose_json", "srt", "vtt")


def _language(form: TranscriptionForm, model: ChatTranscriber) -> str | None:
    named = [(form.language, "language")] if form.language else []
    named += [(name, f"languages[{place}]") for place, name in enumerate(form.languages or ())]
    codes = {model.asking.language(name, param) for name, param in named}
    if len(codes) > 1:
        why = "the model is told one language or none; leave the others out"
        raise refused(named[-1][1], why, "unsupported_value")
    return next(iter(codes), None)


async def answer_chat(
    decoder: AudioDecoder,
    request: Request,
    data: bytes,
    context: RequestContext,
    asked: ResolvedChat,
    events: TranscriptEvents,
) -> ASGIApp:
    sound = await decoder.decode(data, "file")
    del data
    form, wish = asked.form, asked.wish
    transcription = ChatTranscription(asked.model, wish, caller_of(request.scope), context)
    pieces = transcription.pieces(sound.pcm, owner=sound)
    if form.stream:
        diarized = form.response_format == "diarized_json"
        encoder = PieceStream(events, transcription.counted, logprobs=wish.logprobs, diarized=diarized)
        return EventStream(pieces, encoder, bounds=context.bounded)
    async with aclosing(pieces):
        found = [piece async for piece in pieces]
    if form.response_format == "text":
        return Response(whole_text(found), media_type=TEXT)
    seconds = len(sound.pcm) / BYTES_A_SECOND
    if wish.timed and isinstance(form, TranscriptionForm):
        shape = TranscriptShape(
            form.response_format, seconds, None, segments=form.wants_segments, words=form.wants_words
        )
        segments = [segment for piece in found for segment in piece.segments]
        for number, segment in enumerate(segments):
            segment.id = number
        written, media_type = transcript(shape, segments, transcription.language or "unknown")
        return Response(written, media_type=media_type)
    if form.response_format == "diarized_json":
        return Response(whole_diarized(found, seconds), media_type=JSON)
    return Response(whole_json(found, seconds, logprobs=wish.logprobs), media_type=JSON)
