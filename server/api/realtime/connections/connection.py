"""One connection: an actor that owns a session, handles its client's events, and sends events.

::

    reader ── handles one event after the other ──► machine, session, conversation, input_audio
    responses ── a task each ─────────────────────► events
    transcribing ── a task for each turn ─────────► transcripts            all end with the connection
    input_audio ── runs beside ───────────────────► partial transcripts
    writer ◄── event_queue, bounded: producers wait until the client has read

Everything runs on one event loop, and nothing is awaited between a change and its events, so events have the order of
the changes.
"""

import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import anyio
import anyio.abc

from stentor.protocols.common.decoding import decoded_bytes
from stentor.protocols.common.errors import ErrorBody, missing, refused
from stentor.protocols.openai.realtime import server as server_events
from stentor.protocols.openai.realtime.client import (
    AnyClientEvent,
    BufferAppend,
    BufferClear,
    BufferCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputClear,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    TranscriptionSessionUpdate,
    event_id_of,
)
from stentor.protocols.openai.realtime.given import decode_audio, read_item
from stentor.protocols.openai.realtime.items import Content, FunctionCallItem, MessageItem
from stentor.protocols.openai.realtime.live import (
    BackendCreate,
    BackendItem,
    CommentaryAppend,
    ContextAppended,
    Delegation,
    InputMute,
    InputMuted,
    InputUnmute,
    InputUnmuted,
    InstructionsAppend,
    LiveCommand,
    OutputPlayed,
    ResponsesDelegation,
    SessionClose,
    SessionClosed,
    ThinkingAppend,
    backend_of,
    context_item,
)
from stentor.protocols.openai.realtime.server import ServerEvent
from stentor.protocols.openai.realtime.session import AudioInput, RealtimeSession, Session

from ....common.keys import Caller
from ....http.error_responses import describe
from ....observability.realtime_figures import SessionFigures
from ...common.sockets import ReadPace
from ...responses.ids import short_id
from ..answering.delegations import Delegations
from ..answering.interpreter import Interpreter
from ..answering.responding import ResponseHost
from ..answering.response_manager import ResponseManager
from ..answering.responses_backend import ResponsesBackend
from ..common.interfaces import (
    CommittedAudio,
    InputAudio,
    SessionAudio,
    Sound,
    SpeechEvent,
    SpeechStarted,
    SpeechStopped,
    TimedOut,
)
from ..common.services import RealtimeServices
from ..conversation.conversation import Entry, RealtimeConversation
from ..conversation.images import check_images
from ..conversation.machine import Event, SessionMachine, State
from ..conversation.session import SessionRules
from .event_queue import SESSION_EXPIRED, Dialect, EventQueue
from .transcripts import ItemTranscripts

Receive = Callable[[], Awaitable[bytes | Sound | None]]
"""The next message, or received audio; None after the client has disconnected."""

APPENDS: Final = 4
"""This many appends count as one message: their audio has its own limit."""


class Connection:
    """One session of OpenAI's protocol. :meth:`serve` lasts as long as it does."""

    def __init__(
        self,
        services: RealtimeServices,
        caller: Caller,
        rules: SessionRules,
        session: Session,
        dialect: Dialect,
        event_queue: EventQueue,
        audio: SessionAudio,
        *,
        keeps_type: bool = False,
        delegation: Callable[[], Delegation] | None = None,
        language: Callable[[], str] | None = None,
    ) -> None:
        """``keeps_type``: it cannot change its type, as others can before other events.
        ``delegation``: the settings of a session whose model may delegate, as they are now.
        ``language``: what a session interprets into that only interprets, likewise."""
        self._services = services
        self._rules = rules
        self._session: Session = session
        self._dialect = dialect
        self._event_queue = event_queue
        self._open_input_audio = audio.open_input
        realtime = isinstance(session, RealtimeSession)
        self._machine = SessionMachine(State.IDLE if realtime else State.TRANSCRIBING)
        self._conversation = RealtimeConversation(short_id("conv"), services.limits, audio.share)
        self._transcripts = ItemTranscripts(self._conversation, lambda: self._session, self._emit, self._start)
        self._input_audio: InputAudio | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._pristine = not keeps_type
        self._deaf = False
        """The client knows why its audio is not used."""
        self._muted = False
        """Received sound is replaced by silence."""
        self._closing = False
        """The client has asked for the end."""
        player = None
        if audio.make_player is not None:
            player = audio.make_player(self._started_playing, self._stopped_playing, self._played)
        make_pacer = audio.make_pacer if player is None else player.pacer
        assert make_pacer is not None
        self._answering = ResponseManager(
            ResponseHost(services, caller, self._transcripts.wait, event_queue.room, make_pacer, player),
            rules,
            self._machine,
            self._conversation,
            emit=self._emit,
            start=self._start,
            input_audio=lambda: self._input_audio,
            opened_input_audio=self._opened_input_audio,
        )

        def fail(error: Exception) -> None:
            self._tell_error(error, None)

        self._delegations = None
        if delegation is not None:
            backend = None
            if isinstance(delegation(), ResponsesDelegation):
                backend = ResponsesBackend(
                    services.responses,
                    caller,
                    lambda: backend_of(delegation()),
                    self._conversation,
                    emit=self._emit,
                    room=event_queue.room,
                    fail=fail,
                )
            self._delegations = Delegations(
                self._answering,
                self._conversation,
                lambda: self._session,
                delegation,
                backend,
                emit=self._emit,
                start=self._start,
            )
        self._interpreter = None
        if language is not None:
            self._interpreter = Interpreter(
                self._answering,
                self._conversation,
                self._transcripts.wait,
                language,
                player,
                start=self._start,
                fail=fail,
            )
        self.figures: Final = SessionFigures(services.metrics.realtime)

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def conversation(self) -> RealtimeConversation:
        return self._conversation

    async def serve(self, receive: Receive, first: bytes | None = None) -> None:
        """Until the client has gone. ``first`` is a message that has been received already."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            if first is not None:
                await self.take(first)
            pace = ReadPace(self._services.connection.max_messages_per_second)
            while not self._closing and (message := await receive()) is not None:
                is_append = await self.take(message)
                await self._event_queue.room()
                await pace.wait(1 / APPENDS if is_append else 1)
            if self._closing and self._interpreter is not None:
                await self._finish_interpreting(self._interpreter, receive)
            self._machine.take(Event.END)
            tasks.cancel_scope.cancel()
        if self._closing:
            self._emit(SessionClosed())

    async def _finish_interpreting(self, interpreter: Interpreter, receive: Receive) -> None:
        """Returns once all that was heard has been interpreted, or the client has gone."""
        if self._machine.state is State.SPEAKING:
            try:
                self._commit()
            except Exception as error:
                self._tell_error(error, None)
        await interpreter.finish(receive)

    async def take(self, message: bytes | Sound) -> bool:
        """Handles one message and reports its errors. Returns whether it brought audio."""
        if isinstance(message, Sound):
            await self._append_sound(message)
            return True
        event_id = None
        try:
            with self._services.admission.memory.share() as share:
                share.add(len(message) + decoded_bytes(message, self._services.limits))
                event = self._dialect.decode(message, self._services.limits)
                if isinstance(event, Sound):
                    await self._append_sound(event)
                    return True
                event_id = event.event_id
                await self._handle(event)
                return isinstance(event, BufferAppend)
        except Exception as error:
            self._tell_error(error, event_id or event_id_of(message))
            return False

    async def _handle(self, event: AnyClientEvent | LiveCommand) -> None:
        match event:
            case BufferAppend():
                await self._append(decode_audio(event.audio, "audio"))
            case SessionUpdate():
                self._update(event)
            case ItemCreate():
                await self._room_to_hear()
                self._create_item(event)
            case ItemRetrieve():
                self._machine.take(Event.RETRIEVE_ITEM)
                self._emit(server_events.ItemRetrieved(item=self._conversation.retrieved(event.item_id)))
            case ItemDelete():
                self._machine.check(Event.DELETE_ITEM)
                self._conversation.delete(event.item_id)
                self._emit(server_events.ItemDeleted(item_id=event.item_id))
            case ItemTruncate():
                self._truncate(event)
            case ResponseCreate():
                await self._room_to_hear()
                self._answering.respond_as_asked(self._session, event)
                self._pristine = False
            case ResponseCancel():
                self._answering.cancel_as_asked(event)
            case BufferCommit():
                self._commit()
            case BufferClear():
                self._clear()
            case OutputClear():
                self._answering.clear_output()
            case TranscriptionSessionUpdate():
                raise refused("type", "there is no event `transcription_session.update`", "invalid_value")
            case InputMute():
                self._muted = True
                self._emit(InputMuted())
            case InputUnmute():
                self._muted = False
                self._emit(InputUnmuted())
            case InstructionsAppend() | ThinkingAppend() | CommentaryAppend():
                await self._room_to_hear()
                self._append_context(event)
            case BackendItem() | BackendCreate():
                assert self._delegations is not None  # others have no such events
                self._delegations.command(event)
            case SessionClose():
                self._closing = True

    # ---- the session

    def _update(self, event: SessionUpdate) -> None:
        self._machine.check(Event.UPDATE)
        if not isinstance(event.session, dict):
            raise missing("session")
        before = self._session
        session = self._rules.updated(
            before, event.session, pristine=self._pristine, has_spoken=self._answering.has_spoken
        )
        if self._input_audio is not None:
            self._input_audio.check(session.audio.input)
        if type(session) is not type(before):
            into = Event.BECOME_REALTIME if isinstance(session, RealtimeSession) else Event.BECOME_TRANSCRIPTION
            self._machine.take(into)
        self._session = session
        if self._input_audio is not None:
            self._configure(self._input_audio)
        self._emit(server_events.SessionUpdated(session=session))

    @property
    def _input(self) -> AudioInput:
        return self._session.audio.input

    def _configure(self, input_audio: InputAudio) -> None:
        input_audio.configure(self._input, logprobs=bool(self._session.include))

    def _opened_input_audio(self) -> InputAudio:
        """Raises BadRequest without a transcription model."""
        if self._input_audio is None:
            input_audio = self._open_input_audio(self._transcripts.tell_partial, self._take_notice)
            self._configure(input_audio)
            self._input_audio = input_audio
            self._start(input_audio.run)
        return self._input_audio

    async def _room_to_hear(self) -> None:
        if self._input_audio is not None:
            await self._input_audio.room()

    # ---- items

    def _create_item(self, event: ItemCreate) -> None:
        self._machine.check(Event.CREATE_ITEM)
        given = read_item(event.item, "item", self._services.limits)
        given.item.id = given.item.id or short_id("item")
        if isinstance(given.item, FunctionCallItem):
            given.item.call_id = given.item.call_id or short_id("call")
        check_images(given, "item", self._services.chat.accepted)
        entry = Entry(given.item, images=given.images)
        if given.audio is not None:
            self._conversation.check_insert(entry, event.previous_item_id)  # or it would be transcribed for nothing
            entry.turn = self._opened_input_audio().turn_of(entry.item.id, given.audio)
        before = self._conversation.insert(entry, event.previous_item_id)
        self._pristine = False
        self._emit(server_events.ItemAdded(previous_item_id=before, item=entry.item))
        self._emit(server_events.ItemDone(previous_item_id=before, item=entry.item))
        self._transcripts.begin(entry)

    def remember(self, items: list[dict[str, Any]]) -> None:
        """Puts items of the session's own at the end of the conversation, without telling. Raises BadRequest."""
        for item in items:
            given = read_item(item, "item", self._services.limits)
            given.item.id = short_id("item")
            self._conversation.insert(Entry(given.item))

    def _append_context(self, event: InstructionsAppend | ThinkingAppend | CommentaryAppend) -> None:
        assert self._delegations is not None  # others have no such events
        self._delegations.check(event.delegation_id)
        self.remember([context_item(event)])
        if not isinstance(event, InstructionsAppend):
            self._delegations.told()
        self._emit(ContextAppended(given=event))
        if isinstance(event, CommentaryAppend):
            self._answering.respond_when_idle(self._session)

    def _truncate(self, event: ItemTruncate) -> None:
        self._machine.check(Event.TRUNCATE_ITEM)
        entry = self._conversation.check_truncate(event.item_id, event.content_index)
        end_ms = event.audio_end_ms
        if entry.open:
            # by its own clock the client may have played a little more of it than has been sent
            end_ms = min(end_ms, math.ceil(entry.spoken.duration_ms))
            self._answering.cancel_making(entry)
        self._conversation.truncate(event.item_id, event.content_index, end_ms)
        self._emit(
            server_events.ItemTruncated(item_id=event.item_id, content_index=event.content_index, audio_end_ms=end_ms)
        )

    # ---- input audio

    async def _append_sound(self, sound: Sound) -> None:
        """Errors are reported once until audio is accepted again, since audio arrives all the time."""
        try:
            await self._append(bytes(len(sound.pcm)) if self._muted else sound.pcm)
            self._deaf = False
        except Exception as error:
            if not self._deaf:
                self._deaf = True
                self._tell_error(error, None)

    async def _append(self, audio: bytes) -> None:
        self._machine.take(Event.APPEND)
        input_audio = self._opened_input_audio()
        self._pristine = False
        if self._interpreter is not None:
            await self._interpreter.room()
        for found in await input_audio.append(audio):
            self._take_notice(found)

    def _commit(self) -> None:
        self._machine.check(Event.COMMIT)
        self._conversation.check_room()
        turn = self._opened_input_audio().commit()
        self._machine.take(Event.COMMIT)
        self._add_turn(turn)

    def _clear(self) -> None:
        self._machine.take(Event.CLEAR)
        if self._input_audio is not None:
            self._input_audio.clear()
        self._emit(server_events.BufferCleared())

    def _take_notice(self, event: SpeechEvent) -> None:
        """Reports an error in an event, whatever else was found."""
        try:
            self._notice(event)
        except Exception as error:
            self._tell_error(error, None)

    def _notice(self, event: SpeechEvent) -> None:
        detection = self._input.turn_detection
        match event:
            case SpeechStarted():
                self._machine.take(Event.SPEECH_STARTED)
                self._emit(server_events.SpeechStartedEvent(audio_start_ms=event.audio_start_ms, item_id=event.item_id))
                interrupts = detection is not None and detection.interrupt_response
                if interrupts and self._answering.interrupt():
                    self.figures.interrupted()
            case SpeechStopped():
                self._machine.take(Event.SPEECH_STOPPED)
                self.figures.turn_ended(event.spoke_until)
                self._emit(server_events.SpeechStoppedEvent(audio_end_ms=event.audio_end_ms, item_id=event.item_id))
                self._add_turn(event.turn)
                if detection is not None and detection.create_response:
                    self._answering.respond_to_speech(self._session, answers_speech=True)
            case TimedOut():
                self._machine.take(Event.TIMED_OUT)
                self._emit(
                    server_events.TimeoutTriggered(
                        audio_start_ms=event.audio_start_ms, audio_end_ms=event.audio_end_ms, item_id=event.item_id
                    )
                )
                self._add_turn(event.turn)
                self._answering.respond_to_speech(self._session, answers_speech=False)

    def _add_turn(self, turn: CommittedAudio) -> None:
        """Audio that has been committed becomes an item at the end of the conversation."""
        entry = Entry(MessageItem(turn.item_id, "user", [Content("input_audio", transcript=None)]), turn)
        before = self._conversation.append(entry)
        self._emit(server_events.BufferCommitted(previous_item_id=before, item_id=turn.item_id))
        self._emit(server_events.ItemAdded(previous_item_id=before, item=entry.item))
        self._emit(server_events.ItemDone(previous_item_id=before, item=entry.item))
        self._transcripts.begin(entry)
        if self._interpreter is not None:
            self._interpreter.take(self._session, entry)

    # ---- telling

    def begin(self, *, foreign: bool = False) -> None:
        """Sends ``session.created``; ``foreign``: in a form that other dialects understand as well."""
        event = server_events.SessionCreated(session=self._session)
        if foreign:
            event.id, event.created = self._session.id, int(time.time())
        self._emit(event)

    def expire(self) -> None:
        """Tells that the session has lasted as long as it may."""
        message = "The session has lasted as long as it may; open another one."
        self._event_queue.tell(ErrorBody(message, "invalid_request_error", None, SESSION_EXPIRED))

    def _started_playing(self, response_id: str) -> None:
        self.figures.audio_sent()
        self._emit(server_events.OutputStarted(response_id=response_id))

    def _stopped_playing(self, response_id: str) -> None:
        self._emit(server_events.OutputStopped(response_id=response_id))

    def _played(self, item_id: str, ms: int) -> None:
        self._emit(OutputPlayed(item_id=item_id, transcript=self._conversation.spoken_until(item_id, ms)))

    def _tell_error(self, error: Exception, event_id: str | None) -> None:
        self._event_queue.tell(describe(error)[1], event_id)

    def _emit(self, event: ServerEvent) -> None:
        if type(event) is server_events.AudioDelta:
            self.figures.audio_sent()
        self._event_queue.put(event)
        if self._delegations is not None:
            self._delegations.notice(event)

    def _start(self, task: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(task, *args)
