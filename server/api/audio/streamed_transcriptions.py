"""``/v1/audio/transcriptions`` of a streaming transcription model: a file is transcribed as if it were being spoken."""

from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.openai.transcription import TranscriptionForm, TranslationForm

from ...asr.observers import observe_windows
from ...asr.streaming import BYTES_A_SECOND, StreamingTranscriptionModel, stream_whole
from ...asr.timed_pieces import segments_of
from ...audio.decode import AudioDecoder
from ...http.sse import EventStream
from ...middleware.auth import caller_of
from ...observability.request import current_record, current_request_id
from ...overload.request_context import RequestContext
from .streamed_transcript_encoder import PieceStream, whole_json, whole_text
from .transcript_events import TranscriptEvents
from .transcription_encoder import JSON, TEXT, TranscriptShape, transcript


class ResolvedStream(msgspec.Struct, frozen=True):
    """A form's request to such a model."""

    form: TranscriptionForm
    model: StreamingTranscriptionModel


def resolve_stream(form: TranscriptionForm, model: StreamingTranscriptionModel) -> ResolvedStream:
    """Raises BadRequest for formats with times, of a model without them."""
    if not model.form.has_times or form.response_format == "diarized_json":
        check_untimed(form, model.served_names[0])
    if form.use_beam_search:
        raise refused(
            "use_beam_search", "this model writes while it listens, without beams; leave it out", "unsupported"
        )
    return ResolvedStream(form, model)


def check_untimed(form: TranslationForm, model: str) -> None:
    """Raises BadRequest for a format that has times, of a model that knows none."""
    if form.response_format not in ("json", "text"):
        raise refused(
            "response_format",
            f"`{model}` transcribes without times, so there is no {form.response_format} of it; use json or text",
            "unsupported_value",
        )


def refuse_translation(model: str) -> BadRequest:
    return BadRequest(
        f"`{model}` translates nothing; /v1/audio/transcriptions writes down what is said.",
        "model",
        "model_not_supported",
    )


async def answer_streamed(
    decoder: AudioDecoder,
    request: Request,
    data: bytes,
    context: RequestContext,
    asked: ResolvedStream,
    events: TranscriptEvents,
) -> ASGIApp:
    sound = await decoder.decode(data, "file")
    del data
    form, model = asked.form, asked.model
    timed = form.response_format not in ("json", "text")
    pieces = stream_whole(
        model,
        sound.pcm,
        salt=caller_of(request.scope).cache_salt(None),
        name=current_request_id(),
        logprobs=form.wants_logprobs or timed,
        open_account=observe_windows(current_record.get(), context.queue_slot),
        owner=sound,
    )
    if form.stream:
        positions = -(-len(sound.pcm) // model.form.step_bytes)
        encoder = PieceStream(events, lambda: (positions, 0), logprobs=form.wants_logprobs)
        return EventStream(pieces, encoder, bounds=context.bounded)
    async with aclosing(pieces):
        found = [piece async for piece in pieces]
    seconds = len(sound.pcm) / BYTES_A_SECOND
    if timed:
        shape = TranscriptShape(
            form.response_format, seconds, None, segments=form.wants_segments, words=form.wants_words
        )
        segments = segments_of(found, 1 / model.form.positions_a_second, seconds)
        written, media_type = transcript(shape, segments, form.language or "unknown")
        return Response(written, media_type=media_type)
    if form.response_format == "text":
        return Response(whole_text(found), media_type=TEXT)
    return Response(whole_json(found, seconds, logprobs=form.wants_logprobs), media_type=JSON)
