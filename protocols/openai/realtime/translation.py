"""Translation sessions of the Realtime API: as clients configure and see them, and their client events.

Their server events are written by the server's dialect.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...common.errors import BadRequest
from ...common.limits import Limits
from .client import ClientEvent, decode_by
from .live import SessionClose
from .secrets import ExpiresAfter
from .session import Name, NoiseReduction
from .update import NoiseUpdate, naming_unknown, read_fields


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class TranslationTranscription(_Strict, frozen=True):
    """The client gets what it says as text."""

    model: Name


class TranslationInput(_Strict, frozen=True):
    noise_reduction: NoiseUpdate | UnsetType | None = UNSET
    """Returned, without effect."""
    transcription: TranslationTranscription | UnsetType | None = UNSET


class TranslationOutput(_Strict, frozen=True):
    language: Name | UnsetType = UNSET


class TranslationAudio(_Strict, frozen=True):
    input: TranslationInput | UnsetType = UNSET
    output: TranslationOutput | UnsetType = UNSET


class TranslationUpdate(_Strict, frozen=True):
    """Changes of a session."""

    type: Literal["translation"] | UnsetType = UNSET
    audio: TranslationAudio | UnsetType = UNSET

    @property
    def language(self) -> str | UnsetType:
        return self.audio.output.language if self.audio and self.audio.output else UNSET

    @property
    def input(self) -> dict[str, Any]:
        """Changes of ``audio.input``, as those of a session of type ``realtime``."""
        given: dict[str, Any] = msgspec.to_builtins(self.audio.input) if self.audio and self.audio.input else {}
        return given


class TranslationConfig(TranslationUpdate, frozen=True):
    """A session that is to begin."""

    model: Name | None = None


def read_config(given: dict[str, Any]) -> TranslationConfig:
    """Raises BadRequest naming the field."""
    config: TranslationConfig = read_fields(given, TranslationConfig, "session")
    return config


def read_update(given: dict[str, Any]) -> TranslationUpdate:
    """Raises BadRequest naming the field."""
    update: TranslationUpdate = read_fields(given, TranslationUpdate, "session")
    return update


# ---- the effective session


class ShownInput(msgspec.Struct, frozen=True):
    noise_reduction: NoiseReduction | None
    transcription: TranslationTranscription | None


class ShownOutput(msgspec.Struct, frozen=True):
    language: str


class ShownAudio(msgspec.Struct, frozen=True):
    input: ShownInput
    output: ShownOutput


class TranslationSession(msgspec.Struct, frozen=True, tag_field="type", tag="translation"):
    """A session as its client sees it."""

    id: str
    model: str
    expires_at: int
    audio: ShownAudio


# ---- client secrets


class TranslationSecretRequest(msgspec.Struct, frozen=True):
    """``POST /v1/realtime/translations/client_secrets``."""

    session: dict[str, Any]
    expires_after: ExpiresAfter | None = None


class TranslationSecret(msgspec.Struct, frozen=True):
    value: str
    expires_at: int
    session: TranslationSession


secret_decoder: Final = msgspec.json.Decoder(TranslationSecretRequest)


# ---- client events


class _TranslationEvent(ClientEvent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class TranslationSessionUpdate(_TranslationEvent, frozen=True, tag="session.update", kw_only=True):
    session: dict[str, Any]


class TranslationAppend(_TranslationEvent, frozen=True, tag="session.input_audio_buffer.append", kw_only=True):
    audio: str
    """Base64."""


AnyTranslationEvent = TranslationSessionUpdate | TranslationAppend | SessionClose

_decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(AnyTranslationEvent)


def decode_translation(message: bytes, limits: Limits) -> AnyTranslationEvent:
    """Raises BadRequest naming the field."""
    try:
        event: AnyTranslationEvent = decode_by(_decoder, message, limits)
    except BadRequest as error:
        raise naming_unknown(error) from None
    return event
