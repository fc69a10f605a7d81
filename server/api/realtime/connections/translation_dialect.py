"""Translation sessions: one connection in other events, without turns, items and responses for its client.

::

    client                                  server
                                            session.created
    session.update                          session.updated
    session.input_audio_buffer.append, …    session.input_transcript.delta, …    if ``audio.input.transcription`` is set
                                            session.output_transcript.delta, session.output_audio.delta, …
    session.close                           …, session.closed    behind the translation of all that was heard
"""

import re
from typing import Any, Final

from msgspec import UNSET

from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import refused
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.realtime import server as events
from stentor.protocols.openai.realtime.client import BufferAppend, SessionUpdate
from stentor.protocols.openai.realtime.live import SessionClose, SessionClosed
from stentor.protocols.openai.realtime.server import ErrorEvent, RealtimeError, ServerEvent
from stentor.protocols.openai.realtime.session import AudioPcm, RealtimeSession, Session
from stentor.protocols.openai.realtime.translation import (
    ShownAudio,
    ShownInput,
    ShownOutput,
    TranslationAppend,
    TranslationSession,
    TranslationSessionUpdate,
    TranslationTranscription,
    TranslationUpdate,
    decode_translation,
    read_update,
)

from ....asr.languages import NAMES, code_of
from .timeline import JoinedTranscript, Timeline

DEFAULT_LANGUAGE: Final = "en"
_TAG: Final = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*")
_SHOWN_CHARS: Final = 40
_FRAME_MS: Final = 200
"""``elapsed_ms`` advances in steps of this, as it does at OpenAI."""
_BYTES_A_MS: Final = 48


def language_name(language: str, field: str) -> str:
    """The name of a language for the chat model, by a code (``pt``, ``pt-BR``) or an English name. Raises BadRequest
    for a language that is not known."""
    code = code_of(language)
    is_tag = _TAG.fullmatch(language) is not None
    if code is None or not (is_tag or language.strip().isalpha()):
        raise refused(
            field,
            f"there is no language `{language[:_SHOWN_CHARS]}` here; give an ISO 639-1 code, such as `de` or `pt-BR`",
            "invalid_value",
        )
    name = NAMES[code].title()
    return f"{name} ({language})" if is_tag and len(language) > len(code) and language[len(code)] in "-_" else name


class TranslationDialect:
    """A :class:`.event_queue.Dialect` with the state of one session."""

    def __init__(self, update: TranslationUpdate, *, carries_sound: bool) -> None:
        """``update`` begins the session; ``carries_sound``: its transport does. Raises BadRequest."""
        self._carries_sound = carries_sound
        self._begun = False
        """The client has been told of the session: a call may be hung up before."""
        self._timeline = Timeline()
        self._language = self._next_language = DEFAULT_LANGUAGE
        self._language_name = self._next_name = language_name(DEFAULT_LANGUAGE, "")
        self._update(update)
        self._input_transcript, self._output_transcript = JoinedTranscript(), JoinedTranscript()
        self._turn = self._answer = ""
        """Ids of the last ones whose transcripts were sent."""

    @property
    def language(self) -> str:
        """The name of the language to translate into, as it is now."""
        return self._language_name

    def shown(self, session: Session) -> TranslationSession:
        """A session for its client, with the changes that have been accepted."""
        assert isinstance(session, RealtimeSession)
        self._language, self._language_name = self._next_language, self._next_name
        given = session.audio.input
        transcription = given.transcription
        return TranslationSession(
            session.id,
            session.model,
            session.expires_at,
            ShownAudio(
                ShownInput(
                    given.noise_reduction,
                    None if transcription is None else TranslationTranscription(model=transcription.model or ""),
                ),
                ShownOutput(self._language),
            ),
        )

    # ---- from the client

    def decode(self, message: bytes, limits: Limits) -> SessionUpdate | BufferAppend | SessionClose:
        event = decode_translation(message, limits)
        match event:
            case TranslationSessionUpdate():
                update = read_update(event.session)
                self._update(update)
                changes = {"type": "realtime", "audio": {"input": update.input}}
                return SessionUpdate(event_id=event.event_id, session=changes)
            case TranslationAppend():
                if self._carries_sound:
                    raise refused(
                        "type", "the client's audio comes by the media track of its connection", "invalid_event"
                    )
                self._timeline.take_input(len(event.audio) * 3 / 4 / _BYTES_A_MS)
                return BufferAppend(event_id=event.event_id, audio=event.audio)
            case SessionClose():
                return event

    def _update(self, update: TranslationUpdate) -> None:
        """Takes the language to which the next accepted update changes."""
        self._next_language, self._next_name = self._language, self._language_name
        if update.language is not UNSET:
            self._next_name = language_name(update.language, "session.audio.output.language")
            self._next_language = update.language

    # ---- to the client

    def encode(self, event: ServerEvent) -> bytes | None:
        fields = self._fields(event)
        if fields is None or isinstance(fields, ServerEvent):
            return None if fields is None else encode(fields)
        return encode({**fields, "event_id": event.event_id})

    def _fields(self, event: ServerEvent) -> dict[str, Any] | ErrorEvent | None:
        match event:
            case events.SessionCreated(session=session):
                self._begun = True
                return {"type": "session.created", "session": self.shown(session)}
            case events.SessionUpdated(session=session):
                return {"type": "session.updated", "session": self.shown(session)}
            case events.TranscriptionDelta(item_id=item):
                delta = self._input_transcript.shown(event.delta, begins=item != self._turn)
                self._turn = item
                return {"type": "session.input_transcript.delta", "delta": delta, "elapsed_ms": self._elapsed_ms}
            case events.TranscriptDelta(response_id=response):
                delta = self._output_transcript.shown(event.delta, begins=response != self._answer)
                self._answer = response
                return {"type": "session.output_transcript.delta", "delta": delta, "elapsed_ms": self._elapsed_ms}
            case events.AudioDelta():
                return {
                    "type": "session.output_audio.delta",
                    "delta": event.delta,
                    "sample_rate": AudioPcm().rate,
                    "channels": 1,
                    "format": "pcm16",
                    "elapsed_ms": self._elapsed_ms,
                }
            case events.ResponseDone(response=response):
                return self._failure(event, response)
            case SessionClosed():
                return {"type": "session.closed"} if self._begun else None
            case ErrorEvent():
                return event
        return None

    @property
    def _elapsed_ms(self) -> int:
        return self._timeline.now // _FRAME_MS * _FRAME_MS

    def _failure(self, event: ServerEvent, response: events.Response) -> ErrorEvent | None:
        """Why a turn has no translation."""
        details = response.status_details
        if details is None or details.error is UNSET:
            return None
        failure = details.error
        message = failure.message or "The translation has failed."
        return ErrorEvent(event_id=event.event_id, error=RealtimeError(failure.type, failure.code, message, None, None))
