"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.errors import BadRequest, missing, refused
from stentor.protocols.openai import transcription as answers
from stentor.protocols.openai.transcription import TranscriptionForm, TranslationForm

from ...asr.model import TranscriptionModel
from ...asr.observers import observe_windows
from ...asr.options import (
    MAX_PROMPT_TOKENS,
    MAX_TOKENS,
    Chunking,
    SamplingOptions,
    TranscriptionOptions,
)
from ...asr.streaming import StreamingTranscriptionModel
from ...asr.transcribe import Transcription
from ...asr.untimed_vocabulary import UntimedVocabulary
from ...audio.decode import AudioDecoder
from ...config.model_registry import ModelRegistry
from ...generation.admission import draw_seeds
from ...generation.transcription import ChatTranscriber
from ...http.sse import EventStream
from ...middleware.auth import caller_of
from ...observability.request import current_record, current_request_id
from ...overload.memory_budget import MemoryShare
from ...overload.request_context import RequestContext
from ...state.admission_control import AdmissionControl
from ..common.described import Operations, generation
from ..common.endpoint import GenerationEndpoint, request_id
from ..common.forms import too_large, upload_form
from .chat_transcriptions import ResolvedChat, answer_chat, resolve_chat
from .streamed_transcriptions import (
    ResolvedStream,
    answer_streamed,
    check_untimed,
    refuse_translation,
    resolve_stream,
)
from .transcript_events import TranscriptEvents
from .transcription_encoder import TranscriptShape, TranscriptStream, transcript

OPERATIONS: Final[Operations] = {
    "/v1/audio/transcriptions": generation(
        "Transcribe an audio file", answers.Transcription, takes_file=True, form=TranscriptionForm, streams=True
    ),
    "/v1/audio/translations": generation(
        "Transcribe an audio file and translate it",
        answers.Transcription,
        takes_file=True,
        form=TranslationForm,
        streams=True,
    ),
}

_MOST_FIELDS: Final = 256
_PROMPT_CHARS: Final = 4096
"""The model only reads the end of a prompt; this many characters hold more tokens than that."""


class TranscriptionServices(msgspec.Struct, frozen=True):
    """Services of these routes."""

    admission: AdmissionControl
    registry: ModelRegistry
    model: TranscriptionModel | StreamingTranscriptionModel | ChatTranscriber | None
    """None without a transcription model."""
    decoder: AudioDecoder | None
    """Decodes uploads; present with either model."""
    chat: ChatTranscriber | None = None
    """The model that chats, where it transcribes too."""
    force_include_usage: bool = False


Read = Callable[[TranscriptionServices, FormData], "ResolvedTranscription | ResolvedStream | ResolvedChat"]


def routes(transcription: TranscriptionServices) -> list[Route]:
    return [
        _form_route("/v1/audio/transcriptions", transcription, _transcription),
        _form_route("/v1/audio/translations", transcription, _translation),
    ]


def _form_route(path: str, services: TranscriptionServices, read: Read) -> Route:
    """A POST to ``path`` with a form and a file to transcribe. Decoded audio is counted until the response's last byte;
    the file is not."""
    admission = services.admission

    async def begin(request: Request, share: MemoryShare, context: RequestContext) -> Awaitable[ASGIApp]:
        most = admission.limits.max_body_bytes if services.decoder is None else services.decoder.max_bytes
        async with upload_form(admission.limits, request, share, most, _MOST_FIELDS, "`file` and `model`") as form:
            asked, data = read(services, form), await _file_of(form, most)
        assert services.decoder is not None, "it comes with the model"
        name = asked.form.model or asked.model.served_names[0]
        events = TranscriptEvents.of(asked.form, name, request_id(request), force_usage=services.force_include_usage)
        return _answer(services.decoder, request, data, context, asked, events)

    return Route(path, GenerationEndpoint(admission, begin, "transcription"), methods=["POST"])


async def _file_of(form: FormData, most: int) -> bytes:
    given = form.get("file")
    if not isinstance(given, UploadFile):
        raise missing("file")
    if (given.size or 0) > most:
        raise too_large(most)
    return await given.read()


async def _answer(
    decoder: AudioDecoder,
    request: Request,
    data: bytes,
    context: RequestContext,
    asked: "ResolvedTranscription | ResolvedStream | ResolvedChat",
    events: TranscriptEvents,
) -> ASGIApp:
    if isinstance(asked, ResolvedStream):
        return await answer_streamed(decoder, request, data, context, asked, events)
    if isinstance(asked, ResolvedChat):
        return await answer_chat(decoder, request, data, context, asked, events)
    sound = await decoder.decode(data, "file")
    del data
    options = msgspec.structs.replace(
        asked.options, salt=caller_of(request.scope).cache_salt(None), name=current_request_id()
    )
    account = observe_windows(current_record.get(), context.queue_slot)
    transcription = Transcription(asked.model, sound.pcm, options, account, owner=sound)
    shape = _shape(asked, sound.seconds)
    if asked.form.stream:
        return EventStream(transcription.segments(), TranscriptStream(shape, events), bounds=context.bounded)
    async with aclosing(transcription.segments()) as segments:
        found = [segment async for segment in segments]
    content, media_type = transcript(shape, found, transcription.language)
    return Response(content, media_type=media_type)


class ResolvedTranscription(msgspec.Struct, frozen=True):
    """A form's request."""

    form: TranslationForm
    model: TranscriptionModel
    options: TranscriptionOptions


def _transcription(
    services: TranscriptionServices, fields: FormData
) -> ResolvedTranscription | ResolvedStream | ResolvedChat:
    form = TranscriptionForm.of(_texts(fields))
    model = _model(services, form)
    if isinstance(model, StreamingTranscriptionModel):
        return resolve_stream(form, model)
    given, chunking = form.chunking, None
    if given is not None:
        chunking = Chunking(given.threshold, given.prefix_padding_ms, given.silence_duration_ms)
    if isinstance(model, ChatTranscriber):
        return resolve_chat(form, model, chunking)
    _check_format(form, model)
    options = msgspec.structs.replace(
        _options(services, form, model),
        languages=tuple(
            model.language(language, f"languages[{place}]") for place, language in enumerate(form.languages or ())
        ),
        word_times=form.wants_words,
        logprobs=form.wants_logprobs,
        chunking=chunking,
    )
    return ResolvedTranscription(form, model, options)


def _check_format(form: TranslationForm, model: TranscriptionModel) -> None:
    if not model.vocabulary.has_times:
        check_untimed(form, model.served_names[0])
    if form.response_format == "diarized_json":
        why = f"`{model.served_names[0]}` does not tell speakers apart; use json, verbose_json, text, srt or vtt"
        raise refused("response_format", why, "unsupported_value")


def _translation(services: TranscriptionServices, fields: FormData) -> ResolvedTranscription | ResolvedChat:
    form = TranslationForm.of(_texts(fields))
    model = _model(services, form)
    if isinstance(model, StreamingTranscriptionModel):
        raise refuse_translation(model.served_names[0])
    if isinstance(model, ChatTranscriber):
        return resolve_chat(form, model)
    _check_format(form, model)
    if not model.vocabulary.marks_times:
        if not model.vocabulary.translates:
            raise refuse_translation(model.served_names[0])
        asks = not isinstance(model.vocabulary, UntimedVocabulary) or model.vocabulary.asks_source
        if not form.language and asks:
            raise missing("language")
    if not model.multilingual:
        raise BadRequest(
            f"`{model.served_names[0]}` transcribes English alone and translates nothing; send the file to "
            "/v1/audio/transcriptions.",
            "model",
            "model_not_supported",
        )
    options = _options(services, form, model)
    return ResolvedTranscription(
        form, model, msgspec.structs.replace(options, task="translate", written_language=_written(form, model))
    )


def _written(form: TranslationForm, model: TranscriptionModel) -> str:
    """The code of the language of a translation. Raises BadRequest."""
    if model.vocabulary.marks_times or not form.to_language:
        form.check_english()
        return "en"
    return model.language(form.to_language, "to_language")


def _texts(fields: FormData) -> list[tuple[str, str]]:
    # some charsets have halves of characters
    return [
        (name, value.encode("utf-8", "replace").decode())
        for name, value in fields.multi_items()
        if isinstance(value, str)
    ]


def _model(
    services: TranscriptionServices, form: TranslationForm
) -> TranscriptionModel | StreamingTranscriptionModel | ChatTranscriber:
    name = services.registry.resolve(form.model, "transcription")
    chats = services.registry.find(name, kind="transcription").kind == "chat"
    model = services.chat if chats else services.model
    assert model is not None, "the registry has it"
    return model


def _options(services: TranscriptionServices, form: TranslationForm, model: TranscriptionModel) -> TranscriptionOptions:
    draws = not model.vocabulary.framewise
    return TranscriptionOptions(
        adapter=services.registry.adapter_of(form.model) if form.model else None,
        language=model.language(form.language, "language") if form.language else None,
        prompt=form.hint[-_PROMPT_CHARS:],
        temperatures=(form.temperature,) if draws and form.temperature else model.vocabulary.temperatures,
        max_tokens=form.max_completion_tokens or MAX_TOKENS,
        sampling=SamplingOptions(
            form.top_p,
            max(0, form.top_k),
            form.min_p,
            form.repetition_penalty,
            form.presence_penalty,
            form.frequency_penalty,
            None if form.seed is None else draw_seeds(form.seed, 1)[0],
        ),
        beams=form.beams,
    )


def _shape(asked: ResolvedTranscription, seconds: float) -> TranscriptShape:
    form, options, vocabulary = asked.form, asked.options, asked.model.vocabulary
    read = options.prompt.strip() if vocabulary.takes_context else ""
    prompt = vocabulary.encode(" " + read) if read else []
    segments = not isinstance(form, TranscriptionForm) or form.wants_segments
    return TranscriptShape(
        form.response_format,
        seconds,
        vocabulary,
        options.task,
        segments=segments,
        words=options.word_times,
        logprobs=options.logprobs,
        prompt_tokens=len(prompt[-MAX_PROMPT_TOKENS:]),
    )
