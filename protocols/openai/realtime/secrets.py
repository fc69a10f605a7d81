"""Keys for clients, which open sessions of one kind for a while; and the same as it was in the beta."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType


class ExpiresAfter(msgspec.Struct, frozen=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=7200)] = 600


class ClientSecretRequest(msgspec.Struct, frozen=True):
    expires_after: ExpiresAfter | None = None
    session: dict[str, Any] | None = None


class CallForm(msgspec.Struct, frozen=True):
    """Fields beside ``sdp`` in the form that begins a call."""

    session: dict[str, Any] | None = None
    """In JSON."""


class BetaSessionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request of the beta's ``/v1/realtime/sessions``."""

    model: Any = UNSET
    modalities: Any = UNSET
    instructions: Any = UNSET
    voice: Any = UNSET
    speed: Any = UNSET
    input_audio_format: Any = UNSET
    output_audio_format: Any = UNSET
    input_audio_transcription: Any = UNSET
    input_audio_noise_reduction: Any = UNSET
    turn_detection: Any = UNSET
    tools: Any = UNSET
    tool_choice: Any = UNSET
    tracing: Any = UNSET
    include: Any = UNSET
    max_response_output_tokens: Any = UNSET


class BetaSession(BetaSessionRequest, frozen=True, kw_only=True):
    """``/v1/realtime/sessions`` of the beta: the fields of a session, and its client secret."""

    id: str
    object: str
    expires_at: int
    client_secret: dict[str, Any]
    temperature: float | UnsetType = UNSET


secret_decoder: Final = msgspec.json.Decoder(ClientSecretRequest)
beta_decoder: Final = msgspec.json.Decoder(BetaSessionRequest)
