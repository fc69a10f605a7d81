"""Client messages of the Realtime API.

Contents of sessions, items and responses are decoded later, where it is known what is legal.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...common.decoding import decode
from ...common.errors import BadRequest, refused
from ...common.limits import MAX_NAME_LENGTH, Limits

Id = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
EventId = Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ClientEvent(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    event_id: EventId | None = None


class SessionUpdate(ClientEvent, frozen=True, tag="session.update", kw_only=True):
    session: dict[str, Any] | UnsetType = UNSET
    model: Any = UNSET
    """Present without a session if the client uses vLLM's dialect."""

    @property
    def foreign(self) -> bool:
        return self.session is UNSET and self.model is not UNSET


class TranscriptionSessionUpdate(ClientEvent, frozen=True, tag="transcription_session.update", kw_only=True):
    """The beta's message."""

    session: dict[str, Any]


class BufferAppend(ClientEvent, frozen=True, tag="input_audio_buffer.append", kw_only=True):
    audio: str
    """Base64."""


class BufferCommit(ClientEvent, frozen=True, tag="input_audio_buffer.commit"):
    pass


class BufferClear(ClientEvent, frozen=True, tag="input_audio_buffer.clear"):
    pass


class ItemCreate(ClientEvent, frozen=True, tag="conversation.item.create", kw_only=True):
    item: dict[str, Any]
    previous_item_id: Id | None = None
    """``root`` puts it before all others."""


class ItemRetrieve(ClientEvent, frozen=True, tag="conversation.item.retrieve", kw_only=True):
    item_id: Id


class ItemDelete(ClientEvent, frozen=True, tag="conversation.item.delete", kw_only=True):
    item_id: Id


class ItemTruncate(ClientEvent, frozen=True, tag="conversation.item.truncate", kw_only=True):
    item_id: Id
    content_index: Count
    audio_end_ms: Count


class ResponseCreate(ClientEvent, frozen=True, tag="response.create", kw_only=True):
    response: dict[str, Any] | None = None


class ResponseCancel(ClientEvent, frozen=True, tag="response.cancel", kw_only=True):
    response_id: Id | None = None


class OutputClear(ClientEvent, frozen=True, tag="output_audio_buffer.clear"):
    """Only for connections by which the server plays audio itself, which it does not here."""


AnyClientEvent = (
    SessionUpdate
    | TranscriptionSessionUpdate
    | BufferAppend
    | BufferCommit
    | BufferClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
    | OutputClear
)


class _Envelope(msgspec.Struct, frozen=True):
    type: Any = None
    event_id: Any = None


_decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(AnyClientEvent)
_envelope: Final = msgspec.json.Decoder(_Envelope)


def decode_event(message: bytes, limits: Limits) -> AnyClientEvent:
    """Raises BadRequest naming the field."""
    event: AnyClientEvent = decode_by(_decoder, message, limits)
    return event


def decode_by(decoder: msgspec.json.Decoder[Any], message: bytes, limits: Limits) -> Any:
    """An event of the ``decoder``'s. Raises BadRequest naming the field."""
    try:
        return decode(decoder, message, limits, "The message")
    except BadRequest as error:
        kind = kind_of(message)
        if error.param == "type" and kind is not None:
            raise refused("type", f"there is no event `{kind[:80]}`", "invalid_value") from None
        raise


def kind_of(message: bytes) -> str | None:
    """The type that a message names, whether it is known or not."""
    kind = _envelope_of(message).type
    return kind if isinstance(kind, str) else None


def event_id_of(message: bytes) -> str | None:
    """Event id of a message that could not be decoded as a whole."""
    found = _envelope_of(message).event_id
    return found if isinstance(found, str) and len(found) <= MAX_NAME_LENGTH else None


def _envelope_of(message: bytes) -> _Envelope:
    """Readable fields of a message that is no event; it may be nested too deep even for that."""
    try:
        return _envelope.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Envelope()
