"""Between the server and the speech process: sentences go in, samples come out.

One process has one folder of voices. It is given :class:`StartSpeech` first and answers :class:`SpeechReady` or
:class:`SpeechRefused`; from then on each :class:`Synthesize` gets exactly one :class:`SpeechPiece` or
:class:`SpeechFailed`, in order. Samples are signed 16 bits, little-endian, one channel.
"""

from typing import Final, Literal

import msgspec

from .config import LogFormat, LogLevel

SpeechBackend = Literal["piper", "vits"]


class VoicePlace(msgspec.Struct, frozen=True):
    """One voice: a file, and who speaks in it."""

    name: str
    path: str
    """Of the ``.onnx`` file of a Piper voice, or of the folder of a VITS checkpoint."""
    speaker: int | None = None
    """None where the file has only one."""


class StartSpeech(msgspec.Struct, frozen=True, tag=True):
    backend: SpeechBackend
    voices: tuple[VoicePlace, ...]
    threads: int
    """At least 1."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"


class Synthesize(msgspec.Struct, frozen=True, tag=True):
    job: int
    """No two of one process have the same."""
    text: str
    voice: str
    speed: float
    """1 is the voice's own; 2 takes half the time."""


class AbortSpeech(msgspec.Struct, frozen=True, tag=True):
    """What is asked for is no longer wanted; it is answered all the same."""

    job: int


class SpeechReady(msgspec.Struct, frozen=True, tag=True):
    seconds: float
    """That loading took."""


class SpeechRefused(msgspec.Struct, frozen=True, tag=True):
    """The voices cannot be used, and no other process could use them."""

    why: str
    """In one line, for the operator."""


class SpeechPiece(msgspec.Struct, frozen=True, tag=True):
    job: int
    pcm: bytes
    seconds: float
    """That making it took."""


class SpeechFailed(msgspec.Struct, frozen=True, tag=True):
    """Nothing comes of a job: it was aborted, or the voice cannot say it."""

    job: int
    why: str


SpeechInbox = StartSpeech | Synthesize | AbortSpeech
SpeechOutbox = SpeechReady | SpeechRefused | SpeechPiece | SpeechFailed

encode_speech: Final = msgspec.msgpack.Encoder().encode
decode_speech_inbox: Final = msgspec.msgpack.Decoder(SpeechInbox)
decode_speech_outbox: Final = msgspec.msgpack.Decoder(SpeechOutbox)
