"""The Live API: sessions as clients start and see them, and its client events.

Its server events are written by the server's dialect; what only this API tells are the events below, which have no
counterpart in the Realtime API.
"""

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, to_builtins
from msgspec.structs import replace

from ...common.errors import BadRequest, refused, wrong
from ...common.limits import Limits
from ..sampling import not_served
from .client import ClientEvent, Id, decode_by, kind_of
from .server import ServerEvent
from .session import Name
from .update import MAX_INSTRUCTIONS, naming_unknown, read_fields

MAX_HISTORY: Final = 128
"""Messages of a session's ``input``."""
MAX_DELAY_MS: Final = 60_000
"""Of acknowledgements."""

Delay = Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]


# ---- the session


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class LivePcm(_Strict, frozen=True, tag_field="type", tag="audio/pcm"):
    """Signed 16 bits, little-endian, mono."""

    rate: Literal[16000, 24000] = 24000


class LivePcmu(_Strict, frozen=True, tag_field="type", tag="audio/pcmu"):
    rate: Literal[8000] = 8000


class LivePcma(_Strict, frozen=True, tag_field="type", tag="audio/pcma"):
    rate: Literal[8000] = 8000


LiveFormat = LivePcm | LivePcmu | LivePcma


class _CustomVoice(_Strict, frozen=True):
    id: Name


class LiveOutput(_Strict, frozen=True):
    voice: Name | _CustomVoice | None = None


class LiveAudio(_Strict, frozen=True):
    format: LiveFormat | None = None
    """None where the transport carries sound in a format of its own."""
    output: LiveOutput | None = None


class ClientDelegation(_Strict, frozen=True, tag_field="type", tag="client"):
    """The application handles delegated tasks."""

    acknowledgement_delay_ms: Delay | None = None


class BackendUpdate(_Strict, frozen=True, kw_only=True):
    """Changes of a :class:`BackendConfig`: fields of a request of the Responses API."""

    model: Name | UnsetType = UNSET
    instructions: str | UnsetType | None = UNSET
    max_output_tokens: Any = UNSET
    parallel_tool_calls: Any = UNSET
    reasoning: Any = UNSET
    service_tier: Any = UNSET
    text: Any = UNSET
    tool_choice: Any = UNSET
    tools: Any = UNSET


class BackendConfig(BackendUpdate, frozen=True, kw_only=True):
    """What the Responses API is asked with, for delegated tasks."""

    model: Name


class ResponsesDelegation(_Strict, frozen=True, tag_field="type", tag="responses", kw_only=True):
    """The server handles delegated tasks, by its Responses API."""

    responses: BackendConfig
    acknowledgement_delay_ms: Delay | None = None


class _ResponsesUpdate(_Strict, frozen=True, tag_field="type", tag="responses", kw_only=True):
    responses: BackendUpdate | None = None
    acknowledgement_delay_ms: Delay | None = None


Delegation = ClientDelegation | ResponsesDelegation


class _NotDecided(msgspec.Struct, frozen=True, tag_field="type", tag="decisions"):
    ONLY_REFUSED: ClassVar[bool] = True


def backend_of(delegation: Delegation) -> BackendConfig:
    """Of a session that delegates to the server, and so goes on to."""
    assert isinstance(delegation, ResponsesDelegation)
    return delegation.responses


class LiveConfig(_Strict, frozen=True, kw_only=True):
    """The session of ``session.start``."""

    model: Name
    audio: LiveAudio | None = None
    client: dict[str, Any] | None = None
    delegation: Delegation | _NotDecided | None = None
    input: list[dict[str, Any]] | None = None
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS)] | None = None
    safety_identifier: Name | None = None
    """Returned, without effect."""
    store: bool | None = None
    triggers: list[Any] | None = None


class LiveUpdateConfig(_Strict, frozen=True, kw_only=True):
    """The session of ``session.update``."""

    delegation: ClientDelegation | _ResponsesUpdate | _NotDecided | None = None
    triggers: list[Any] | None = None


class LiveSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as its client sees it."""

    id: str
    expires_at: int
    model: str
    status: Literal["active"] = "active"
    audio: LiveAudio
    delegation: Delegation
    input: list[dict[str, Any]] | None = None
    instructions: str | None = None
    safety_identifier: str | None = None
    store: bool = False


def read_config(given: dict[str, Any], *, carries_sound: bool = False) -> LiveConfig:
    """The configuration of a session; ``carries_sound``: its transport negotiates the format of audio. Raises
    BadRequest naming the field."""
    config: LiveConfig = read_fields(given, LiveConfig, "session")
    _check_served(config.delegation, config.triggers)
    if config.store:
        raise not_served("session.store", "`session.store`: storing sessions for recordings and forks")
    if carries_sound and config.audio is not None and config.audio.format is not None:
        raise refused(
            "session.audio.format", "the transport negotiates the format of audio; leave it out", "unsupported"
        )
    if config.client is not None and not carries_sound:
        raise refused(
            "session.client", "only sessions over WebRTC have a data channel to restrict; leave it out", "unsupported"
        )
    if config.client is not None:
        raise not_served("session.client", "`session.client`: restricting the events of a data channel")
    if len(config.input or ()) > MAX_HISTORY:
        raise wrong(
            "session.input",
            f"has {len(config.input or ())} items; at most {MAX_HISTORY} are allowed",
            "array_above_max_length",
        )
    return config


def read_update(given: dict[str, Any], now: Delegation) -> Delegation:
    """The changed delegation. Raises BadRequest naming the field."""
    config: LiveUpdateConfig = read_fields(given, LiveUpdateConfig, "session")
    _check_served(config.delegation, config.triggers)
    match now, config.delegation:
        case (_, None):
            return now
        case (ClientDelegation(), ClientDelegation(acknowledgement_delay_ms=delay)):
            return now if delay is None else replace(now, acknowledgement_delay_ms=delay)
        case (ResponsesDelegation(), _ResponsesUpdate(responses=update, acknowledgement_delay_ms=delay)):
            changes = {} if update is None else to_builtins(update)
            return replace(
                now,
                responses=replace(now.responses, **changes),
                acknowledgement_delay_ms=now.acknowledgement_delay_ms if delay is None else delay,
            )
    kind = now.__struct_config__.tag
    raise wrong("session.delegation.type", f"must be `{kind}`, as the session was started", "invalid_value")


def _check_served(delegation: Any, triggers: list[Any] | None) -> None:
    if isinstance(delegation, _NotDecided):
        raise not_served("session.delegation.type", "`session.delegation.type`: a delegation of type `decisions`")
    if triggers:
        raise not_served("session.triggers", "`session.triggers`: the Decisions API")


class _Text(_Strict, frozen=True):
    text: str
    type: str | None = None


class _HistoryItem(_Strict, frozen=True, kw_only=True):
    """One message of ``input``."""

    role: Literal["developer", "user", "assistant"]
    content: list[_Text]
    id: Name | None = None
    """Not kept: nothing in this API names an item."""
    status: Literal["incomplete", "completed"] | None = None
    """Not kept: an incomplete message is not resumed."""
    type: Literal["message"] | None = None


_TEXTS: Final = {"developer": ("input_text",), "user": ("input_text",), "assistant": ("text", "output_text")}


def history_item(given: dict[str, Any], where: str) -> dict[str, Any]:
    """A message of ``input`` as an item of the Realtime API. Raises BadRequest naming the field below ``where``."""
    item: _HistoryItem = read_fields(given, _HistoryItem, where)
    if len(item.content) != 1:
        raise wrong(f"{where}.content", "must hold exactly one text", "invalid_value")
    (part,) = item.content
    if part.type not in (None, *_TEXTS[item.role]):
        expected = " or ".join(_TEXTS[item.role])
        raise wrong(f"{where}.content[0].type", f"must be {expected} in a message of role {item.role}", "invalid_value")
    role = "system" if item.role == "developer" else item.role
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": part.text}]}


# ---- WebRTC


class LiveOffer(_Strict, frozen=True):
    type: Literal["webrtc"]
    sdp: str


class LiveCreateRequest(_Strict, frozen=True):
    """``POST /v1/live/sessions``."""

    session: dict[str, Any]
    transport: LiveOffer


class CreatedSession(msgspec.Struct, frozen=True):
    id: str


class LiveCreated(msgspec.Struct, frozen=True):
    """The session and the answer to its offer."""

    session: CreatedSession
    transport: LiveOffer


create_decoder: Final = msgspec.json.Decoder(LiveCreateRequest)


# ---- client events


class _LiveEvent(ClientEvent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class SessionStart(_LiveEvent, frozen=True, tag="session.start", kw_only=True):
    session: dict[str, Any]


class LiveUpdate(_LiveEvent, frozen=True, tag="session.update", kw_only=True):
    session: dict[str, Any]


class LiveAppend(_LiveEvent, frozen=True, tag="session.input_audio.append", kw_only=True):
    audio: str
    """Base64."""


class InputMute(_LiveEvent, frozen=True, tag="session.input_audio.mute"):
    pass


class InputUnmute(_LiveEvent, frozen=True, tag="session.input_audio.unmute"):
    pass


class ContextAppend(_LiveEvent, frozen=True, kw_only=True):
    """More of the session's context."""

    content: str
    delegation_id: Id | None


class InstructionsAppend(ContextAppend, frozen=True, tag="session.instructions.append", kw_only=True):
    pass


class ThinkingAppend(ContextAppend, frozen=True, tag="session.thinking.append", kw_only=True):
    """Silent: it asks for no speech."""


class CommentaryAppend(ContextAppend, frozen=True, tag="session.commentary.append", kw_only=True):
    """What the model is to tell the user."""


_CONTEXT: Final = {
    InstructionsAppend: "{}",
    ThinkingAppend: "For your information only; do not say it now: {}",
    CommentaryAppend: "Tell the user now, in your own words: {}",
}


def context_item(event: InstructionsAppend | ThinkingAppend | CommentaryAppend) -> dict[str, Any]:
    """Appended context as an item of the Realtime API, in words for a model that knows no such events."""
    text = _CONTEXT[type(event)].format(event.content)
    if event.delegation_id is not None:
        text = f"From the backend: {text}"
    return {"type": "message", "role": "system", "content": [{"type": "input_text", "text": text}]}


class BackendItem(_LiveEvent, frozen=True, tag="response.item.create", kw_only=True):
    """More input for the Responses backend."""

    item: dict[str, Any]


class BackendCreate(_LiveEvent, frozen=True, tag="response.create"):
    """Runs the Responses backend."""


class SessionClose(_LiveEvent, frozen=True, tag="session.close"):
    pass


LiveCommand = (
    InputMute
    | InputUnmute
    | InstructionsAppend
    | ThinkingAppend
    | CommentaryAppend
    | BackendItem
    | BackendCreate
    | SessionClose
)
"""Those without a counterpart in the Realtime API."""
AnyLiveEvent = SessionStart | LiveUpdate | LiveAppend | LiveCommand
_NOT_SERVED: Final = {
    "session.output_audio.fixture.play": "playing fixtures of audio",
    "decision.create": "the Decisions API",
    "decision.item.create": "the Decisions API",
    "decision.item.delete": "the Decisions API",
    "transport.dtmf.send": "SIP",
}
"""Events of the API that are refused, and what they need."""

_decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(AnyLiveEvent)


def decode_live(message: bytes, limits: Limits) -> AnyLiveEvent:
    """Raises BadRequest naming the field."""
    try:
        event: AnyLiveEvent = decode_by(_decoder, message, limits)
    except BadRequest as error:
        kind = kind_of(message)
        if error.param == "type" and kind in _NOT_SERVED:
            raise not_served("type", f"`type`: `{kind}` needs {_NOT_SERVED[kind]}, which") from None
        raise naming_unknown(error) from None
    return event


# ---- what only this API tells


class InputMuted(ServerEvent, tag="session.input_audio.muted", kw_only=True):
    pass


class InputUnmuted(ServerEvent, tag="session.input_audio.unmuted", kw_only=True):
    pass


class ContextAppended(ServerEvent, tag="session.context.appended", kw_only=True):
    given: InstructionsAppend | ThinkingAppend | CommentaryAppend


class Delegated(ServerEvent, tag="session.delegation.created", kw_only=True):
    """The model has handed a task over."""

    delegation_id: str
    target: Literal["client", "responses"]
    response_id: str | None = None


class BackendEvent(ServerEvent, tag="response.event", kw_only=True):
    """An event of the Responses backend."""

    event: dict[str, Any]
    delegation_id: str | None


class OutputPlayed(ServerEvent, tag="session.output.played", kw_only=True):
    """Playback of an answer has come further."""

    item_id: str
    transcript: str
    """All of the item that has been spoken by now."""


class OutputAudio(ServerEvent, tag="session.output_audio.delta", kw_only=True):
    delta: str
    """Base64."""


class SessionClosed(ServerEvent, tag="session.closed", kw_only=True):
    reason: Literal["close_requested"] = "close_requested"
