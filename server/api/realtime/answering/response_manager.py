"""The responses of one session: one in its conversation, and any with ``conversation: "none"``."""

import math
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from stentor.protocols.common.errors import BadRequest, wrong
from stentor.protocols.openai.realtime import server as server_events
from stentor.protocols.openai.realtime.client import ResponseCancel, ResponseCreate
from stentor.protocols.openai.realtime.given import read_item, read_reference
from stentor.protocols.openai.realtime.server import (
    Reason,
    Response,
    ResponseAudio,
    ResponseAudioOutput,
    StatusDetails,
)
from stentor.protocols.openai.realtime.session import RealtimeSession, Session
from stentor.protocols.openai.realtime.update import ResponseFields, read_fields

from ...responses.ids import short_id
from ..common.interfaces import InputAudio, PlayedItems
from ..conversation.conversation import Entry, RealtimeConversation
from ..conversation.images import check_images
from ..conversation.machine import Event, SessionMachine, State
from ..conversation.session import SessionRules
from .answer import Emit, ResponseWriter
from .responding import Responding, ResponseHost

MAX_ASIDE: Final = 16
"""Most concurrent responses outside the conversation."""
MAX_INPUT: Final = 1024
"""Items that a response itself may bring."""

Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Begins a task of the connection."""


class ResponseManager:
    """Belongs to the connection, whose machine and conversation it changes."""

    def __init__(
        self,
        host: ResponseHost,
        rules: SessionRules,
        machine: SessionMachine,
        conversation: RealtimeConversation,
        *,
        emit: Emit,
        start: Start,
        input_audio: Callable[[], InputAudio | None],
        opened_input_audio: Callable[[], InputAudio],
    ) -> None:
        """``start`` begins a task of the connection. ``input_audio`` gives the open pipeline, None before there is one;
        ``opened_input_audio`` opens it, or raises BadRequest."""
        self._host = host
        self._rules = rules
        self._machine = machine
        self._conversation = conversation
        self._emit = emit
        self._start = start
        self._input_audio = input_audio
        self._opened_input_audio = opened_input_audio
        self._response: Responding | None = None
        """The conversation's response, until it ends."""
        self._aside: dict[str, Responding] = {}
        self._last_response: str | None = None
        self._wanted: RealtimeSession | None = None
        """The settings of a response that begins once nothing else goes on; any response that begins is that one."""
        self.has_spoken = False
        """Whether audio has been sent: the voice can then not change."""

    def respond_as_asked(self, session: Session, event: ResponseCreate) -> None:
        """Raises BadRequest, also where the machine does."""
        given = event.response or {}
        fields: ResponseFields = read_fields(given, ResponseFields, "response")
        aside = fields.conversation == "none"
        if fields.conversation not in (None, "auto", "none", self._conversation.id):
            raise wrong("response.conversation", "must be `auto` or `none`", "invalid_value")
        self._machine.check(Event.RESPOND_ASIDE if aside else Event.RESPOND)
        assert isinstance(session, RealtimeSession)  # the machine has no responses for others
        own = session
        session = self._rules.answering(session, fields, "response")
        if fields.audio:
            output = self._rules.output(session.audio.output, fields.audio.output, "response.audio.output")
            self._check_voice(own, output.voice, aside=aside)
            audio = msgspec.structs.replace(session.audio, output=output)
            session = msgspec.structs.replace(session, audio=audio)
        if aside and len(self._aside) >= MAX_ASIDE:
            raise BadRequest(
                f"{MAX_ASIDE} responses beside the conversation have not ended, as many as may be.",
                None,
                "too_many_responses",
                429,
            )
        self._conversation.check_room()
        entries = self._conversation.entries_for_model() if fields.input is None else self._own_input(fields.input)
        own_input = fields.input is not None
        self._start(self._begun(session, entries, aside=aside, metadata=fields.metadata, own_input=own_input).run)

    def _check_voice(self, session: RealtimeSession, voice: str | None, *, aside: bool) -> None:
        if self.has_spoken and not aside and voice != session.audio.output.voice:
            raise wrong(
                "response.audio.output.voice",
                "cannot be another one any more: audio has been sent",
                "cannot_update_voice",
            )

    def _own_input(self, items: list[dict[str, Any]]) -> list[Entry]:
        if len(items) > MAX_INPUT:
            raise wrong(
                "response.input", f"has {len(items)} items; at most {MAX_INPUT} are allowed", "array_above_max_length"
            )
        entries = []
        audio_entries = []
        for index, item in enumerate(items):
            where = f"response.input[{index}]"
            reference = read_reference(item, where)
            if reference is not None:
                entries.append(self._conversation.find(reference, Event.RESPOND, f"{where}.id"))
                continue
            given = read_item(item, where, self._host.services.limits)
            check_images(given, where, self._host.services.chat.accepted)
            entry = Entry(given.item, images=given.images)
            if given.audio is not None:
                audio_entries.append((entry, given.audio))
            entries.append(entry)
        for entry, audio in audio_entries:  # once all other checks have passed
            entry.turn = self._opened_input_audio().turn_of(short_id("item"), audio)
            entry.turn.forget_audio()
        return entries

    def respond_to_speech(self, session: Session, *, answers_speech: bool) -> None:
        """Begins a response because a turn ended, or the caller was idle. Raises Illegal."""
        if isinstance(session, RealtimeSession):
            self._machine.check(Event.RESPOND)
            answers_speech = answers_speech and self._wanted is None
            entries = self._conversation.entries_for_model()
            self._start(self._begun(session, entries, answers_speech=answers_speech).run)

    async def respond_beside(self, session: RealtimeSession, entries: list[Entry]) -> None:
        """Makes a response to these items outside the conversation, and returns at its end, however it ends."""
        await self._begun(session, entries, aside=True, own_input=True).run()

    def respond_when_idle(self, session: Session) -> None:
        """Begins a response at once, or when the caller has spoken and the conversation's response has ended. Several
        requests meanwhile get one response."""
        if isinstance(session, RealtimeSession):
            self._wanted = session
            self._respond_if_wanted()

    def _respond_if_wanted(self) -> None:
        if self._wanted is not None and self._machine.state is State.IDLE:
            self._start(self._begun(self._wanted, self._conversation.entries_for_model()).run)

    async def _respond_later(self) -> None:
        self._respond_if_wanted()

    def _begun(
        self,
        session: RealtimeSession,
        entries: list[Entry],
        *,
        aside: bool = False,
        metadata: dict[str, str] | None = None,
        own_input: bool = False,
        answers_speech: bool = False,
    ) -> Responding:
        """A response that has been told to have begun, and is still to run."""
        self._machine.take(Event.RESPOND_ASIDE if aside else Event.RESPOND)
        response = Response(
            id=short_id("resp"),
            output=[],
            conversation_id=None if aside else self._conversation.id,
            output_modalities=session.output_modalities,
            max_output_tokens=session.max_output_tokens,
            metadata=metadata,
        )
        if session.output_modalities == ["audio"]:
            output = session.audio.output
            response.audio = ResponseAudio(ResponseAudioOutput(output.format, output.voice))
        answer = ResponseWriter(response, self._emit, None if aside else self._conversation, self._host.player)
        responding = Responding(
            self._host,
            session,
            answer,
            entries,
            None if aside or own_input else self._conversation,
            answers_speech=answers_speech,
        )
        if aside:
            self._aside[answer.id] = responding
        else:
            self._wanted = None
            self._response = responding
            self._last_response = answer.id
            if (input_audio := self._input_audio()) is not None:
                input_audio.responding()
        answer.on_end = lambda: self._ended(responding)
        answer.begin(self._rate_limits())
        return responding

    def _ended(self, responding: Responding) -> None:
        """Called just before its ``response.done``."""
        self.has_spoken = self.has_spoken or responding.answer.has_spoken
        if self._host.player is not None:
            self._host.player.finish(responding.answer.id)
        if self._response is responding:
            self._response = None
            self._machine.take(Event.RESPONSE_ENDED)
            if (input_audio := self._input_audio()) is not None:
                input_audio.responded(responding.unplayed_ms)
            if self._wanted is not None:
                self._start(self._respond_later)  # behind its `response.done`
        else:
            self._aside.pop(responding.answer.id, None)

    def _rate_limits(self) -> list[server_events.RateLimit]:
        """How much more may wait for the engine, of all clients together."""
        config, queue = self._host.services.admission.overload, self._host.services.admission.queue
        requests, tokens = config.max_queued_requests, config.max_queued_tokens
        limits = [
            server_events.RateLimit("requests", requests, max(0, requests - queue.requests), 0.0),
            server_events.RateLimit("tokens", tokens, max(0, tokens - queue.tokens), 0.0),
        ]
        return [one for one in limits if one.limit]

    def cancel_as_asked(self, event: ResponseCancel) -> None:
        aside = self._aside.get(event.response_id or "")
        if aside is not None:
            self._machine.take(Event.CANCEL_ASIDE)
            self._cancel(aside, "client_cancelled")
            return
        self._machine.check(Event.CANCEL)
        assert self._response is not None  # otherwise the state machine would not allow cancelling
        if event.response_id not in (None, self._response.answer.id):
            raise BadRequest(
                f"Cancellation failed: the response `{event.response_id[:80]}` has ended, or never was.",
                "response_id",
                "response_cancel_not_active",
            )
        self._machine.take(Event.CANCEL)
        self._cancel(self._response, "client_cancelled")

    def cancel_making(self, entry: Entry) -> None:
        """Ends the response of the conversation where it is still making that item."""
        if entry.open:
            self._cancel(self._response, "client_cancelled")

    def interrupt(self) -> bool:
        """Ends the conversation's response because the caller speaks, and stops its playback here; returns whether
        there was one, or audio to stop."""
        cancelled = self._response
        self._cancel(cancelled, "turn_detected")
        played = self._hush()
        if played.response_id is not None:
            self._emit(server_events.OutputCleared(response_id=played.response_id))
        self._cut_off(cancelled, played)
        return cancelled is not None or played.response_id is not None

    def _cancel(self, responding: Responding | None, reason: Reason) -> None:
        if responding is not None:
            responding.cancel(StatusDetails("cancelled", reason))

    def clear_output(self) -> None:
        self._machine.take(Event.CLEAR_OUTPUT)
        if self._last_response is None:
            raise BadRequest("There is no audio to clear.", None, "output_audio_buffer_empty")
        cancelled = self._response
        self._cancel(cancelled, "client_cancelled")
        played = self._hush()
        self._emit(server_events.OutputCleared(response_id=played.response_id or self._last_response))
        self._cut_off(cancelled, played)

    def _hush(self) -> PlayedItems:
        return PlayedItems(None, {}) if self._host.player is None else self._host.player.stop()

    def _cut_off(self, cancelled: Responding | None, played: PlayedItems) -> None:
        """Truncates items that were not fully heard; clients that play do that themselves."""
        if self._host.player is None:
            return
        unsaid = () if cancelled is None else (item.id for item in cancelled.answer.response.output)
        for id, ms in {**dict.fromkeys(unsaid, 0), **played.items}.items():
            entry = self._conversation.spoken_answer(id)
            if entry is None or (entry.item.status == "completed" and ms >= math.floor(entry.spoken.duration_ms)):
                continue
            ms = min(ms, math.ceil(entry.spoken.duration_ms))
            self._conversation.truncate(id, 0, ms)
            self._emit(server_events.ItemTruncated(item_id=id, content_index=0, audio_end_ms=ms))
