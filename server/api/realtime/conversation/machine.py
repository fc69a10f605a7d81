"""The states of a session, and the allowed events of each, in one table.

::

    IDLE ───── speech_started ────► SPEAKING           the client speaks
      │ ▲ ◄── speech_stopped, commit ──┘ │
      │ └──────── response ends ───┐     │
      └── response begins ──► RESPONDING │             the default conversation has a response that has not ended
                                 │       │
          speech_started ─► OVERLAPPING ◄┘             both at the same time

    TRANSCRIBING          a transcription session: there are no responses
    ENDED                 no more input; running work ends

An event that a state does not allow is refused, and the state does not change.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from stentor.protocols.common.errors import BadRequest


class State(Enum):
    IDLE = "idle"
    SPEAKING = "speaking"
    RESPONDING = "responding"
    OVERLAPPING = "overlapping"
    TRANSCRIBING = "transcribing"
    ENDED = "ended"


class Event(Enum):
    """A client's event, by its name, or an internal one."""

    UPDATE = "session.update"
    APPEND = "input_audio_buffer.append"
    COMMIT = "input_audio_buffer.commit"
    CLEAR = "input_audio_buffer.clear"
    CREATE_ITEM = "conversation.item.create"
    RETRIEVE_ITEM = "conversation.item.retrieve"
    DELETE_ITEM = "conversation.item.delete"
    TRUNCATE_ITEM = "conversation.item.truncate"
    RESPOND = "response.create"
    RESPOND_ASIDE = "response.create with `conversation` none"
    CANCEL = "response.cancel"
    CANCEL_ASIDE = "response.cancel of a response beside the conversation"
    CLEAR_OUTPUT = "output_audio_buffer.clear"

    BECOME_TRANSCRIPTION = "a session of type transcription"
    BECOME_REALTIME = "a session of type realtime"
    SPEECH_STARTED = "speech started"
    SPEECH_STOPPED = "speech stopped"
    TIMED_OUT = "nobody spoke"
    RESPONSE_ENDED = "the response ended"
    END = "the connection ended"


def _always(state: State, *events: Event) -> dict[Event, State]:
    return dict.fromkeys(events, state)


_ITEMS: Final = (Event.CREATE_ITEM, Event.RETRIEVE_ITEM, Event.DELETE_ITEM, Event.TRUNCATE_ITEM)
_ASIDE: Final = (Event.RESPOND_ASIDE, Event.CANCEL_ASIDE, Event.CLEAR_OUTPUT)

TABLE: Final[Mapping[State, Mapping[Event, State]]] = {
    State.IDLE: {
        **_always(State.IDLE, Event.UPDATE, Event.APPEND, Event.COMMIT, Event.CLEAR, *_ITEMS, *_ASIDE),
        Event.TIMED_OUT: State.IDLE,
        Event.SPEECH_STARTED: State.SPEAKING,
        Event.RESPOND: State.RESPONDING,
        Event.BECOME_TRANSCRIPTION: State.TRANSCRIBING,
        Event.END: State.ENDED,
    },
    State.SPEAKING: {
        **_always(State.SPEAKING, Event.UPDATE, Event.APPEND, *_ITEMS, *_ASIDE),
        Event.SPEECH_STARTED: State.SPEAKING,  # turn detection was off meanwhile
        **_always(State.IDLE, Event.SPEECH_STOPPED, Event.COMMIT, Event.CLEAR),
        Event.RESPOND: State.OVERLAPPING,
        Event.END: State.ENDED,
    },
    State.RESPONDING: {
        **_always(State.RESPONDING, Event.UPDATE, Event.APPEND, Event.COMMIT, Event.CLEAR, *_ITEMS, *_ASIDE),
        Event.CANCEL: State.RESPONDING,
        Event.TIMED_OUT: State.RESPONDING,
        Event.SPEECH_STARTED: State.OVERLAPPING,
        Event.RESPONSE_ENDED: State.IDLE,
        Event.END: State.ENDED,
    },
    State.OVERLAPPING: {
        **_always(State.OVERLAPPING, Event.UPDATE, Event.APPEND, Event.CANCEL, *_ITEMS, *_ASIDE),
        Event.SPEECH_STARTED: State.OVERLAPPING,
        **_always(State.RESPONDING, Event.SPEECH_STOPPED, Event.COMMIT, Event.CLEAR),
        Event.RESPONSE_ENDED: State.SPEAKING,
        Event.END: State.ENDED,
    },
    State.TRANSCRIBING: {
        **_always(State.TRANSCRIBING, Event.UPDATE, Event.APPEND, Event.COMMIT, Event.CLEAR),
        **_always(State.TRANSCRIBING, Event.RETRIEVE_ITEM, Event.DELETE_ITEM),
        **_always(State.TRANSCRIBING, Event.SPEECH_STARTED, Event.SPEECH_STOPPED, Event.TIMED_OUT),
        Event.BECOME_REALTIME: State.IDLE,
        Event.END: State.ENDED,
    },
    State.ENDED: {Event.RESPONSE_ENDED: State.ENDED},
}


class Illegal(BadRequest):
    """An event that the state does not have."""


class SessionMachine:
    """Owns the state of one session."""

    def __init__(self, state: State = State.IDLE) -> None:
        self._state = state

    @property
    def state(self) -> State:
        return self._state

    @property
    def responding(self) -> bool:
        """The default conversation has an open response."""
        return self._state in (State.RESPONDING, State.OVERLAPPING)

    def check(self, event: Event) -> None:
        """Raises Illegal where :meth:`take` would."""
        if event not in TABLE[self._state]:
            raise _refusal(self._state, event)

    def take(self, event: Event) -> None:
        """Raises Illegal, and then nothing has changed."""
        self.check(event)
        self._state = TABLE[self._state][event]


def _refusal(state: State, event: Event) -> Illegal:
    if state is State.TRANSCRIBING:
        return Illegal(f"A transcription session has no `{event.value}`.", "type", "invalid_event")
    if event is Event.RESPOND:
        return Illegal(
            "The conversation has a response that has not ended; wait for its `response.done`, or cancel it.",
            None,
            "conversation_already_has_active_response",
        )
    if event is Event.CANCEL:
        return Illegal("Cancellation failed: there is no response to cancel.", None, "response_cancel_not_active")
    return Illegal(f"`{event.value}` cannot be taken while the session is {state.value}.", None, "invalid_event")
