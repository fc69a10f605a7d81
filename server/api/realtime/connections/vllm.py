"""vLLM's dialect of ``/v1/realtime``: transcription of one audio stream after another, and nothing else.

::

    client                                        server
                                                  session.created {id, created}
    session.update {model}
    input_audio_buffer.commit                                                      an utterance begins
    input_audio_buffer.append {audio}, …          transcription.delta {delta}, …   pcm, 16 bits, 16 kHz, mono
    input_audio_buffer.commit {final: true}       transcription.done {text, usage}
                                                  error {error, code}              the connection goes on

Its first message has a model and no session, which distinguishes it from OpenAI's; or it is a commit with ``final``,
without the message that must come before it.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import anyio.abc
import msgspec

from stentor.protocols.common.decoding import decode_json
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest

from ....http.error_responses import describe
from ...common.sockets import ReadPace, Receive
from ..common.audio_budget import AudioFull, AudioShare, unbounded
from ..common.formats import MODEL_AUDIO
from ..common.interfaces import TokenProbability
from ..listening.hypotheses import TranscriptionSettings
from ..listening.partial_pace import PartialPace
from ..listening.streamed import COPIES, AnyTranscriber, AnyTranscription, StreamTranscriber, begin_transcription

MAX_HELD_MS: Final = 600_000
"""Audio without a transcript; beyond it, the next is not read."""
POSITIONS_A_SECOND: Final = 50
"""Positions of a second of audio for models without streaming: prompt tokens in usage."""

Put = Callable[[bytes], None]


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Delta(msgspec.Struct, tag_field="type", tag="transcription.delta"):
    delta: str


class Done(msgspec.Struct, tag_field="type", tag="transcription.done"):
    text: str
    usage: Usage


class Failed(msgspec.Struct, tag_field="type", tag="error"):
    error: str
    code: str


class _Message(msgspec.Struct):
    """Any message of a client."""

    type: str
    model: str | None = None
    audio: str = ""
    final: bool = False


class _First(msgspec.Struct):
    type: str
    model: str | None = None
    session: Any = None
    final: bool | None = None


_messages: Final = msgspec.json.Decoder(_Message)
_firsts: Final = msgspec.json.Decoder(_First)


def is_vllm_client(message: bytes) -> bool:
    """Whether the client's first message is of this dialect."""
    try:
        first = _firsts.decode(message)
    except (msgspec.DecodeError, RecursionError):
        return False
    if first.type == "input_audio_buffer.commit":
        return first.final is not None
    return first.type == "session.update" and first.session is None and first.model is not None


def refusal(error: BadRequest) -> bytes:
    """An error event."""
    return encode(Failed(error.message, error.code or "processing_error"))


class _Utterance:
    """Audio between two commits."""

    def __init__(self, transcription: AnyTranscription) -> None:
        self.transcription: Final = transcription
        self.tokens = 0


class VllmSession:
    """One connection. :meth:`serve` lasts as long as it does."""

    def __init__(
        self,
        transcribe: AnyTranscriber,
        pace: PartialPace,
        check_model: Callable[[str], object],
        put: Put,
        room: Callable[[], Awaitable[None]],
        *,
        max_messages: int = 0,
        share: AudioShare | None = None,
    ) -> None:
        """``check_model`` raises BadRequest for unknown models; ``put`` sends to the client, and ``room`` waits until
        it has read enough. At most ``max_messages`` of the client are read a second; 0: no limit. ``share`` counts
        audio."""
        self._transcribe = transcribe
        self._pace = pace
        self._check_model = check_model
        self._put = put
        self._room = room
        self._max_messages = max_messages
        self._model: str | None = None
        """The client's model name; None before it."""
        self._early = bytearray()
        """Audio that came before the commit that begins its utterance."""
        self._share = share or unbounded()
        self._early_hold = self._share.hold()
        self._utterance: _Utterance | None = None
        self._unsettled: list[AnyTranscription] = []
        self._settled = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def serve(self, receive: Receive, first: bytes) -> None:
        """Until the client has gone."""
        async with anyio.create_task_group() as self._tasks:
            message: bytes | None = first
            pace = ReadPace(self._max_messages)
            while message is not None:
                try:
                    await self._take(message)
                except BadRequest as error:
                    self._put(refusal(error))
                await self._room()
                await pace.wait()
                message = await receive()
            self._tasks.cancel_scope.cancel()

    async def _take(self, text: bytes) -> None:
        try:
            message = decode_json(_messages, text)
        except msgspec.ValidationError as error:
            raise BadRequest(f"Invalid event: {error}", code="processing_error") from None
        except (msgspec.DecodeError, RecursionError):
            raise BadRequest("Invalid JSON", code="invalid_json") from None
        match message.type:
            case "session.update":
                self._update(message.model)
            case "input_audio_buffer.append":
                await self._append(message.audio)
            case "input_audio_buffer.commit":
                self._commit(final=message.final)
            case other:
                raise BadRequest(f"Unknown event type: {other[:80]}", code="unknown_event")

    def _update(self, model: str | None) -> None:
        if model is None:
            raise BadRequest("Missing required field: model", code="invalid_event")
        try:
            self._check_model(model)
        except BadRequest as error:
            raise BadRequest(error.message, code="model_not_found") from error
        self._model = model

    async def _append(self, audio: str) -> None:
        try:
            pcm = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest("Invalid audio data: not base64", code="invalid_audio") from None
        if not pcm or len(pcm) % MODEL_AUDIO.sample_bytes:
            raise BadRequest("Invalid audio data: not samples of two bytes each", code="invalid_audio")
        while sum(transcription.waiting_ms for transcription in self._unsettled) > MAX_HELD_MS:
            await self._settled.wait()
        if self._utterance is not None:
            await self._utterance.transcription.room(MAX_HELD_MS)
        try:
            self._share.check(COPIES * len(pcm))
        except AudioFull as full:
            raise BadRequest(str(full), code=full.code) from None
        if self._utterance is not None:
            self._utterance.transcription.push(pcm)
            return
        if (len(self._early) + len(pcm)) * 1000 > MAX_HELD_MS * MODEL_AUDIO.bytes_a_second:
            raise BadRequest(
                f"Invalid audio data: more than {MAX_HELD_MS // 1000} s before a commit", code="invalid_audio"
            )
        self._early += pcm
        self._early_hold.set(COPIES * len(self._early))  # with its later copy in the utterance

    def _commit(self, *, final: bool) -> None:
        if self._model is None:
            raise BadRequest(
                "Model not validated. Make sure to validate the model by sending a session.update event.",
                code="model_not_validated",
            )
        if self._utterance is None:
            self._begin()
        if final and self._utterance is not None:
            self._utterance.transcription.finish()
            self._utterance = None

    def _begin(self) -> None:
        utterance: _Utterance

        def tell(text: str, tokens: list[TokenProbability]) -> None:
            utterance.tokens += len(tokens)
            self._put(encode(Delta(text)))

        wanted = TranscriptionSettings(partials=True, logprobs=True, model=self._model or "")
        transcription = begin_transcription(0, self._transcribe, wanted, self._pace, tell, share=self._share)
        self._utterance = utterance = _Utterance(transcription)
        early = bytes(self._early)
        self._early.clear()
        self._early_hold.set(0)
        transcription.push(early)
        assert self._tasks is not None
        self._unsettled.append(transcription)
        self._tasks.start_soon(transcription.run)
        self._tasks.start_soon(self._finish, utterance)

    async def _finish(self, utterance: _Utterance) -> None:
        try:
            transcript = await utterance.transcription.transcript()
        except Exception as error:
            if self._utterance is utterance:
                self._utterance = None
            self._put(encode(Failed(describe(error)[1].message, "processing_error")))
            return
        finally:
            self._unsettled.remove(utterance.transcription)
            self._settled.set()
            self._settled = anyio.Event()
        transcribe = self._transcribe
        a_second = transcribe.positions_a_second if isinstance(transcribe, StreamTranscriber) else POSITIONS_A_SECOND
        prompt = round(transcript.seconds * a_second)
        usage = Usage(prompt, utterance.tokens, prompt + utterance.tokens)
        self._put(encode(Done(transcript.text, usage)))
