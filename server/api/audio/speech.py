"""``POST /v1/audio/speech`` and ``GET /v1/audio/voices``."""

import base64
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor.protocols.common.decoding import decode
from stentor.protocols.openai.speech import (
    TOKENS_A_SECOND,
    SpeechDelta,
    SpeechDone,
    SpeechRequest,
    SpeechUsage,
    VoiceCard,
    VoiceList,
    decoder,
)

from ...audio.encode import MEDIA_TYPES, encoded
from ...config.model_registry import ModelRegistry
from ...http.sse import DONE, EventStream, frame_of
from ...middleware.auth import caller_of
from ...overload.request_context import RequestContext
from ...state.admission_control import AdmissionControl
from ...text.pool import TokenizerPool
from ...tts.model import SpeechModel
from ..common.described import Operation, Operations, generation
from ..common.endpoint import generation_route, json_response


class SpeechEvents:
    """Events of one file that is sent while it is synthesised."""

    failed = False

    def __init__(self) -> None:
        self.input_tokens = 0
        self.seconds = 0.0
        """Seconds of audio so far; the synthesis counts them."""

    def encode(self, batch: bytes) -> bytes:
        """The frame of one piece of the file."""
        return frame_of(SpeechDelta(base64.b64encode(batch).decode()))

    def end(self) -> bytes:
        spoken = round(self.seconds * TOKENS_A_SECOND)
        usage = SpeechUsage(self.input_tokens, spoken, self.input_tokens + spoken)
        return frame_of(SpeechDone(usage)) + DONE


class SpeechBytes:
    """The file itself."""

    failed = False

    def encode(self, batch: bytes) -> bytes:
        return batch

    def end(self) -> bytes:
        return b""


OPERATIONS: Final[Operations] = {
    "/v1/audio/speech": generation("Turn a text into speech", str, SpeechRequest, media_type="audio/*", streams=True),
    "/v1/audio/voices": Operation("List the voices of the speech model", VoiceList),
}

_SAMPLE_BYTES: Final = 2


class SpeechServices(msgspec.Struct, frozen=True):
    """Services of these routes."""

    admission: AdmissionControl
    registry: ModelRegistry
    model: SpeechModel | None
    """None without a speech model."""
    pool: TokenizerPool
    """Counts the tokens of texts."""


def routes(speech: SpeechServices) -> list[Route]:
    return [
        generation_route("/v1/audio/speech", speech, speak, "speech"),
        Route("/v1/audio/voices", partial(voices, speech.model), methods=["GET"]),
    ]


async def speak(speech: SpeechServices, request: Request, content: bytes, context: RequestContext) -> ASGIApp:
    body = decode(decoder, content, speech.admission.limits)
    body.check()
    speech.registry.resolve(body.model, "speech")
    model = speech.model
    assert model is not None, "the registry has it"
    voice = model.voice(body.voice_name)
    model.check_speed(body.speed)
    events = SpeechEvents()
    sound = _sound(model, body, voice, caller_of(request.scope).salt, context, events)
    if body.stream_format == "sse":
        events.input_tokens = len(await speech.pool.encode(body.input, False, field="input"))
        return EventStream(sound, events, bounds=context.bounded)
    return EventStream(
        sound,
        SpeechBytes(),
        math.inf,  # nothing has been sent that the client could miss
        context.bounded,
        to_frame=_break_off,
        media_type=MEDIA_TYPES[body.response_format],
    )


async def voices(model: SpeechModel | None, _request: Request) -> Response:
    """The list of voices, empty without a speech model."""
    names = () if model is None else model.voices
    return json_response(VoiceList([VoiceCard(name, name) for name in names]))


async def _sound(
    model: SpeechModel, body: SpeechRequest, voice: str, salt: str, context: RequestContext, events: SpeechEvents
) -> AsyncGenerator[bytes, None]:
    """The file, piece by piece."""

    async def pcm() -> AsyncGenerator[bytes, None]:
        # started here, inside the block that closes it: a response that is never sent starts nothing
        async with aclosing(model.speak(body.input, voice=voice, speed=body.speed, salt=salt)) as speaking:
            async for spoken in speaking:
                context.queue_slot.processed(0)  # it waits no more
                events.seconds += len(spoken.pcm) / _SAMPLE_BYTES / model.sample_rate
                second = _SAMPLE_BYTES * model.sample_rate
                for start in range(0, len(spoken.pcm), second):
                    yield spoken.pcm[start : start + second]

    async with aclosing(pcm()) as pieces, aclosing(encoded(pieces, body.response_format, model.sample_rate)) as file:
        async for piece in file:
            yield piece


def _break_off(error: Exception) -> bytes:
    """A file has no place for an error: the connection ends before the file does, which the client notices."""
    raise error
