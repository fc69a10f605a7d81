"""The Live API: one connection in other events, without turns, items and responses for its client.

::

    client                                  server
    session.start                           session.started
    session.input_audio.append, …           session.input_transcript.delta, …
                                            session.output_transcript.delta, session.output_audio.delta, …
    session.input_audio.mute, unmute        session.input_audio.muted, unmuted
    session.{instructions, thinking,        session.{…}.appended
      commentary}.append
                                            session.delegation.created     answered by one of these
    session.update                          session.updated
                                            session.usage.updated      behind each answer
    session.close                           session.closed

Everything has a place on one timeline, in milliseconds since the session started.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from stentor.engine.layers.audio.prompt_resample import PromptResampler
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import refused, wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.realtime import server as events
from stentor.protocols.openai.realtime.client import AnyClientEvent, SessionUpdate
from stentor.protocols.openai.realtime.given import MAX_AUDIO, decode_audio
from stentor.protocols.openai.realtime.items import MessageItem
from stentor.protocols.openai.realtime.live import (
    BackendConfig,
    BackendEvent,
    ContextAppended,
    Delegated,
    Delegation,
    InputMuted,
    InputUnmuted,
    LiveAppend,
    LiveCommand,
    LiveFormat,
    LivePcma,
    LivePcmu,
    LiveSession,
    LiveUpdate,
    OutputAudio,
    OutputPlayed,
    ResponsesDelegation,
    SessionClosed,
    SessionStart,
    decode_live,
    read_update,
)
from stentor.protocols.openai.realtime.server import ServerEvent

from ..common.formats import Wire
from ..common.interfaces import Sound
from .event_queue import SESSION_EXPIRED
from .timeline import JoinedTranscript, Timeline

Fields = dict[str, Any]

SOUND_RATE: Final = 24_000
"""Of pcm between the edge and the session."""
_ACKNOWLEDGED: Final = {InputMuted: "session.input_audio.muted", InputUnmuted: "session.input_audio.unmuted"}


def wire_of(format: LiveFormat) -> Wire:
    match format:
        case LivePcmu():
            return Wire(format.rate, "pcmu")
        case LivePcma():
            return Wire(format.rate, "pcma")
        case _:
            return Wire(format.rate)


class _Stretch:
    """Transcript of one turn or one answer, told piece by piece."""

    def __init__(self, begin: int) -> None:
        self.end = begin
        """Up to here it has been told."""
        self.last: int | None = None
        """Where its audio ends, once known."""
        self.text = ""

    def until(self, now: int) -> tuple[int, int]:
        """The time of the next piece."""
        begin, self.end = self.end, max(self.end, now if self.last is None else min(now, self.last))
        return begin, self.end


class LiveDialect:
    """A :class:`.event_queue.Dialect` with the state of one session."""

    def __init__(self, check_backend: Callable[[BackendConfig], BackendConfig]) -> None:
        """``check_backend`` completes the settings of a Responses backend, or raises BadRequest."""
        self._check_backend = check_backend
        self._timeline = Timeline()
        self._session: LiveSession | None = None
        self._context = 0
        self._input: Wire | None = None
        """None where the transport carries sound."""
        self._resampler: PromptResampler | None = None
        self._half = b""
        self._command: str | None = None
        """The client's id of the event that is being handled."""
        self._turns: dict[str, _Stretch] = {}
        """By the ids of items whose transcripts are incomplete."""
        self._answer = ("", _Stretch(0))
        """The item that is being played."""
        self._context_used: float | None = None
        """Share of the context that the last answer has used."""
        self._unreported = False
        """An answer has been made, and may not have been heard to its end."""
        self._told = {"input": JoinedTranscript(), "output": JoinedTranscript()}

    # ---- the session

    def start(self, session: LiveSession, context: int) -> None:
        """From now on events are those of ``session``, whose model has a ``context`` of that many tokens."""
        self._session, self._context = session, context
        self._timeline = Timeline()
        format = session.audio.format
        if format is not None:
            self._input = wire_of(format)
            self._resampler = PromptResampler(self._input.rate, SOUND_RATE)

    @property
    def output(self) -> Wire:
        """The format of audio for the client."""
        assert self._input is not None  # otherwise the transport carries it
        return self._input

    @property
    def delegation(self) -> Delegation:
        """As it is now."""
        assert self._session is not None
        return self._session.delegation

    # ---- from the client

    def decode(self, message: bytes, limits: Limits) -> AnyClientEvent | LiveCommand | Sound:
        self._command = None
        event = decode_live(message, limits)
        self._command = event.event_id
        match event:
            case SessionStart():
                raise refused("type", "the session has started already", "invalid_event")
            case LiveUpdate():
                self._update(event)
                return SessionUpdate(event_id=event.event_id, session={"type": "realtime"})
            case LiveAppend():
                return self._sound(event)
            case _:
                return event

    def decode_start(self, message: bytes, limits: Limits) -> SessionStart:
        """The first event. Raises BadRequest."""
        self._command = None
        event = decode_live(message, limits)
        self._command = event.event_id
        if not isinstance(event, SessionStart):
            raise refused("type", "the session has not started; send `session.start` first", "session_not_started")
        return event

    def _update(self, event: LiveUpdate) -> None:
        delegation = read_update(event.session, self.delegation)
        if isinstance(delegation, ResponsesDelegation):
            delegation = replace(delegation, responses=self._check_backend(delegation.responses))
        assert self._session is not None
        self._session = replace(self._session, delegation=delegation)

    def _sound(self, event: LiveAppend) -> Sound:
        if self._input is None or self._resampler is None:
            raise refused("type", "the client's audio comes by the media track of its connection", "invalid_event")
        audio = self._half + decode_audio(event.audio, "audio")
        wire = self._input
        grown = len(audio) * (2 // wire.sample_bytes) * SOUND_RATE // wire.rate
        if grown > MAX_AUDIO:
            most = MAX_AUDIO / (2 * SOUND_RATE)
            raise wrong("audio", f"is longer than the {most:.0f} s that one event may bring", "string_above_max_length")
        whole = len(audio) - len(audio) % wire.sample_bytes
        audio, self._half = audio[:whole], audio[whole:]
        self._timeline.take_input(len(audio) / wire.bytes_a_second * 1000)
        return Sound(self._resampler.push(wire.decode(audio)))

    # ---- to the client

    def encode(self, event: ServerEvent) -> bytes | None:
        fields = self._fields(event)
        if fields is None:
            return None
        if "event_id" not in fields:
            fields["event_id"] = event.event_id
        return encode({name: value for name, value in fields.items() if value is not None})

    def _fields(self, event: ServerEvent) -> Fields | None:
        match event:
            case OutputAudio():
                return {"type": "session.output_audio.delta", "delta": event.delta, "event_id": None}
            case OutputPlayed():
                return self._played(event)
            case events.TranscriptionDelta():
                turn = self._turns.setdefault(event.item_id, _Stretch(self._timeline.now))
                return self._transcript("input", turn, event.delta)
            case events.SpeechStartedEvent():
                self._turns[event.item_id] = _Stretch(self._timeline.place(event.audio_start_ms))
            case events.SpeechStoppedEvent():
                stopped = self._turns.get(event.item_id)
                if stopped is not None:
                    stopped.last = self._timeline.place(event.audio_end_ms)
            case events.TranscriptionCompleted():
                self._turns.pop(event.item_id, None)
            case events.TranscriptionFailed(error=error):
                self._turns.pop(event.item_id, None)
                return _error(error.type, error.code, error.message, error.param)
            case events.ResponseDone():
                return self._done(event.response)
            case events.OutputStopped() | events.OutputCleared():
                return self._used()
            case events.SessionCreated():
                return self._acknowledged("session.started", session=self._shown)
            case events.SessionUpdated():
                return self._acknowledged("session.updated", session=self._shown)
            case InputMuted() | InputUnmuted():
                return self._acknowledged(_ACKNOWLEDGED[type(event)])
            case ContextAppended():
                kind = event.given.__struct_config__.tag
                now = self._timeline.now
                return self._acknowledged(f"{kind}ed", start_ms=now, end_ms=now)
            case Delegated():
                delegation = {"type": "delegation", "id": event.delegation_id, "target": event.target}
                if event.response_id is not None:
                    delegation["response_id"] = event.response_id
                return {
                    "type": "session.delegation.created",
                    "delegation": delegation,
                    "offset_ms": self._timeline.now,
                }
            case BackendEvent():
                return {"type": "response.event", "event": event.event, "delegation_id": event.delegation_id}
            case SessionClosed():
                return self._closed(event.reason)
            case events.ErrorEvent(error=error):
                if error.code == SESSION_EXPIRED and self._session is not None:
                    return self._closed("expired")
                return _error(error.type, error.code, error.message, error.param, error.event_id)
        return None

    def _acknowledged(self, type: str, **fields: Any) -> Fields:
        return {"type": type, **fields, "client_event_id": self._command}

    @property
    def _shown(self) -> Fields:
        """The session without what is not set."""
        session: Fields = to_builtins(self._session)
        session["audio"] = _without_none(session["audio"])
        session["delegation"] = _without_none(session["delegation"])
        return _without_none(session)

    @property
    def _usage(self) -> Fields:
        return {"seconds": self._timeline.now / 1000}

    def _closed(self, reason: str) -> Fields | None:
        if self._session is None:  # it was hung up before it began
            return None
        command = self._command if reason == "close_requested" else None
        return {
            "type": "session.closed",
            "reason": reason,
            "session": self._shown,
            "usage": self._usage,
            "client_event_id": command,
        }

    def _done(self, response: events.Response) -> Fields | None:
        """What has been used, once the answer has been heard; or why there is none."""
        details = response.status_details
        if details is not None and details.error is not UNSET:
            failure = details.error
            return _error(failure.type, failure.code, failure.message or "The answer has failed.")
        if response.usage is not None and self._context:
            self._context_used = min(1.0, response.usage.total_tokens / self._context)
        self._unreported = True
        is_heard = any(isinstance(item, MessageItem) for item in response.output)
        return None if is_heard and response.status != "cancelled" else self._used()

    def _used(self) -> Fields | None:
        if not self._unreported:
            return None
        self._unreported = False
        window = None if self._context_used is None else {"usage_ratio": self._context_used}
        return {"type": "session.usage.updated", "usage": self._usage, "context_window": window}

    def _played(self, event: OutputPlayed) -> Fields | None:
        item, answer = self._answer
        if item != event.item_id:
            answer = _Stretch(self._timeline.now)
            self._answer = (event.item_id, answer)
        more = event.transcript[len(answer.text) :]
        if not more:
            return None
        return self._transcript("output", answer, more)

    def _transcript(self, kind: str, stretch: _Stretch, delta: str) -> Fields:
        shown = self._told[kind].shown(delta, begins=not stretch.text)
        stretch.text += delta
        begin, end = stretch.until(self._timeline.now)
        return {"type": f"session.{kind}_transcript.delta", "delta": shown, "start_ms": begin, "end_ms": end}


def _error(type: str, code: str | None, message: str, param: str | None = None, command: str | None = None) -> Fields:
    error = {"type": type, "code": code or type, "message": message, "param": param, "client_event_id": command}
    return {"type": "error", "error": _without_none(error)}


def _without_none(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}
