"""``/v1/audio/speech``: the request, the events of its stream; and ``/v1/audio/voices``."""

import math
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ..common import limits
from ..common.bounds import chars_at_most
from ..common.errors import refused, wrong

SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
TOKENS_A_SECOND: Final = 20
"""Tokens in ``usage`` for a second of audio."""

VoiceName = Annotated[str, Meta(max_length=limits.MAX_NAME_LENGTH)]


class VoiceId(msgspec.Struct, frozen=True):
    id: VoiceName


class SpeechRequest(msgspec.Struct, kw_only=True):
    """Text, voice and format."""

    input: str
    model: Annotated[str, Meta(max_length=limits.MAX_NAME_LENGTH)] | None = None
    voice: VoiceName | VoiceId | None = None
    """None is the default voice."""
    instructions: str | None = None
    """Accepted and ignored: no supported voice takes instructions."""
    response_format: SpeechFormat = "mp3"
    speed: Annotated[float, Meta(ge=0.25, le=4.0)] = 1.0
    stream_format: Literal["audio", "sse"] = "audio"

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice

    def check(self) -> None:
        """Raises BadRequest."""
        chars_at_most(self.input, limits.MAX_SPEECH_CHARS, "input")
        chars_at_most(self.instructions, limits.MAX_SPEECH_CHARS, "instructions")
        if not self.input.strip():
            raise wrong("input", "is blank: there is nothing to say", "invalid_value")
        if not math.isfinite(self.speed):
            raise refused("speed", "a number is expected", "invalid_value")


class SpeechDelta(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.delta"):
    audio: str
    """Base64 of the next bytes of the file."""


class SpeechUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDone(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.done"):
    usage: SpeechUsage


class VoiceCard(msgspec.Struct, frozen=True):
    id: str
    name: str


class VoiceList(msgspec.Struct, frozen=True):
    voices: list[VoiceCard]


decoder: Final = msgspec.json.Decoder(SpeechRequest)
