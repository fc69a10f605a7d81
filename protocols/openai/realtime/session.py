"""Sessions of the Realtime API: the effective session, as sent to clients, and a client's update.

The effective session has every field, null if unset. In an update a missing field stays as it is; null (or an empty
text or list, which mean the same) clears it.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...common.limits import MAX_NAME_LENGTH

Modality = Literal["text", "audio"]
Eagerness = Literal["low", "medium", "high", "auto"]
Include = Literal["item.input_audio_transcription.logprobs"]

MAX_OUTPUT_TOKENS: Final = 4096
MAX_MILLISECONDS: Final = 600_000

Threshold = Annotated[float, Meta(ge=0, le=1)]
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_MILLISECONDS)]
IdleTimeout = Annotated[int, Meta(ge=5000, le=30_000)]
Speed = Annotated[float, Meta(ge=0.25, le=1.5)]
OutputTokens = Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)] | Literal["inf"]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]
Prompt = Annotated[str, Meta(max_length=16384)]
Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], Name], Meta(max_length=16)]


# ---- formats


class AudioPcm(msgspec.Struct, frozen=True, tag_field="type", tag="audio/pcm", forbid_unknown_fields=True):
    """Signed 16 bits, little-endian, mono."""

    rate: Literal[24000] = 24000


class AudioPcmu(msgspec.Struct, frozen=True, tag_field="type", tag="audio/pcmu", forbid_unknown_fields=True):
    """G.711 µ-law, 8 kHz."""


class AudioPcma(msgspec.Struct, frozen=True, tag_field="type", tag="audio/pcma", forbid_unknown_fields=True):
    """G.711 A-law, 8 kHz."""


AudioFormat = AudioPcm | AudioPcmu | AudioPcma


# ---- the effective session


class ServerVad(msgspec.Struct, frozen=True, tag_field="type", tag="server_vad", forbid_unknown_fields=True):
    threshold: Threshold = 0.5
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Milliseconds = 500
    idle_timeout_ms: IdleTimeout | None = None
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(msgspec.Struct, frozen=True, tag_field="type", tag="semantic_vad", forbid_unknown_fields=True):
    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


class Transcription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the client's audio is transcribed."""

    model: Name | None = None
    language: Name | None = None
    prompt: Prompt | None = None
    languages: Annotated[list[Name], Meta(max_length=128)] | None = None
    keywords: Annotated[list[Name], Meta(max_length=1024)] | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class NoiseReduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["near_field", "far_field"] = "near_field"
    strength: Ratio = 1.0


class AudioInput(msgspec.Struct, frozen=True):
    """Format, transcription and turn detection of the client's audio."""

    format: AudioFormat = AudioPcm()
    transcription: Transcription | None = None
    noise_reduction: NoiseReduction | None = None
    turn_detection: TurnDetection | None = ServerVad()
    """None: the client commits turns."""


class AudioOutput(msgspec.Struct, frozen=True):
    format: AudioFormat = AudioPcm()
    voice: str | None = None
    """None: the speech model's default."""
    speed: Speed = 1.0


class RealtimeAudio(msgspec.Struct, frozen=True):
    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class TokenLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    post_instructions: Annotated[int, Meta(ge=0)] | None = None
    """The most that the conversation may have beside the instructions."""


class RetentionRatio(msgspec.Struct, frozen=True, tag_field="type", tag="retention_ratio", forbid_unknown_fields=True):
    retention_ratio: Ratio
    """Fraction of the allowed context that is kept when items are dropped."""
    token_limits: TokenLimits | None = None


Truncation = Literal["auto", "disabled"] | RetentionRatio


class TracingConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    workflow_name: Name | None = None
    group_id: Name | None = None
    metadata: Metadata | None = None


Tracing = Literal["auto"] | TracingConfiguration


class Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class RealtimeSession(msgspec.Struct, frozen=True, tag_field="type", tag="realtime", kw_only=True):
    """A session in which the model answers."""

    id: str
    object: Literal["realtime.session"] = "realtime.session"
    model: str
    output_modalities: list[Modality]
    instructions: str = ""
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool | UnsetType = UNSET
    reasoning: Reasoning | UnsetType = UNSET
    max_output_tokens: OutputTokens = "inf"
    tracing: Tracing | None = None
    """Returned, without effect."""
    truncation: Truncation = "auto"
    prompt: Any = None
    expires_at: int
    audio: RealtimeAudio = RealtimeAudio()
    include: list[Include] | None = None


class TranscriptionAudio(msgspec.Struct, frozen=True):
    input: AudioInput = AudioInput(transcription=Transcription())


class TranscriptionSession(msgspec.Struct, frozen=True, tag_field="type", tag="transcription", kw_only=True):
    """A session that only transcribes."""

    id: str
    object: Literal["realtime.transcription_session"] = "realtime.transcription_session"
    expires_at: int
    audio: TranscriptionAudio = TranscriptionAudio()
    include: list[Include] | None = None


Session = RealtimeSession | TranscriptionSession
