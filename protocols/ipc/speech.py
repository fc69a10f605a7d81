"""Between the server and the speech process: sentences go in, samples come out.

One process has one folder of voices. It is given :class:`StartSpeech` first and answers :class:`SpeechReady` or
:class:`SpeechRefused`; from then on each :class:`Synthesize` gets exactly one :class:`SpeechPiece` or
:class:`SpeechFailed`, in order. A voice that makes audio bit by bit sends :class:`SpeechPart` before. Samples are
signed 16 bits, little-endian, one channel.
"""

from typing import Final, Literal

import msgspec

from .config import LogFormat, LogLevel

SpeechBackend = Literal["piper", "vits", "hibari", "pocket", "kokoro"]
English = Literal["en-us", "en-gb"]


class VoicePlace(msgspec.Struct, frozen=True):
    """One voice: a file, and a speaker in it."""

    name: str
    path: str
    """Path of the voice's ``.onnx`` file, or of the folder of a checkpoint."""
    speaker: int | None = None
    """None for a file with one speaker."""
    style: str | None = None
    """Path of the file that makes the voice, where one model has several: a prompt, a style."""
    language: English | None = None
    """Of a voice that reads the phonemes of English; None for others."""


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
    """The client no longer wants this; it is still answered."""

    job: int


class SpeechReady(msgspec.Struct, frozen=True, tag=True):
    seconds: float
    """Time of loading."""


class SpeechRefused(msgspec.Struct, frozen=True, tag=True):
    """The voices cannot be used, and no other process could use them."""

    why: str
    """In one line, for the operator."""


class SpeechPart(msgspec.Struct, frozen=True, tag=True):
    """Audio of a sentence that is still being made."""

    job: int
    pcm: bytes


class SpeechPiece(msgspec.Struct, frozen=True, tag=True):
    job: int
    pcm: bytes
    """All of the sentence, or what follows its parts."""
    seconds: float
    """Time of synthesis, parts included."""


class SpeechFailed(msgspec.Struct, frozen=True, tag=True):
    """A job has no result: it was aborted, or the voice cannot speak it."""

    job: int
    why: str


SpeechInbox = StartSpeech | Synthesize | AbortSpeech
SpeechOutbox = SpeechReady | SpeechRefused | SpeechPart | SpeechPiece | SpeechFailed

encode_speech: Final = msgspec.msgpack.Encoder().encode
decode_speech_inbox: Final = msgspec.msgpack.Decoder(SpeechInbox)
decode_speech_outbox: Final = msgspec.msgpack.Decoder(SpeechOutbox)
