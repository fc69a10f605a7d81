"""Between the server and the speech process: sentences or a codec's codes go in, samples come out.

One process has one folder of voices, or one codec. It is given :class:`StartSpeech` first and answers
:class:`SpeechReady` or :class:`SpeechRefused`; from then on each :class:`Synthesize` (voices) or :class:`DecodeCodes`
(codecs) gets exactly one :class:`SpeechPiece` or :class:`SpeechFailed`, in order, and each :class:`Phonemize` one
:class:`Phonemes`. A voice that makes audio bit by bit sends :class:`SpeechPart` before. Samples are signed 16 bits,
little-endian, one channel.
"""

from typing import Final, Literal

import msgspec

from .config import LogFormat, LogLevel

VoiceBackend = Literal[
    "piper",
    "vits",
    "hibari",
    "pocket",
    "kokoro",
    "csm",
    "dia",
    "higgs",
    "vibevoice",
    "speecht5",
    "bark",
    "seamless",
    "musicgen",
]
CodecBackend = Literal["neucodec", "snac", "xcodec2"]
SpeechBackend = VoiceBackend | CodecBackend
English = Literal["en-us", "en-gb"]


class VoicePlace(msgspec.Struct, frozen=True):
    """One voice: a file, and a speaker in it."""

    name: str
    path: str
    """Path of the voice's ``.onnx`` file, or of the folder of a checkpoint or a codec."""
    speaker: int | None = None
    """None for a file with one speaker."""
    style: str | None = None
    """Path of the file that makes the voice, where one model has several: a prompt, a recording, a style."""
    transcript: str | None = None
    """What is spoken in the recording; None where there is none, or the model needs no transcript."""
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


class DecodeCodes(msgspec.Struct, frozen=True, tag=True):
    """A stretch of a sentence's frames, with frames around it that its samples depend on."""

    job: int
    codes: list[int]
    """Frame by frame; a frame has as many codes as its codec says."""
    first: int
    """Number of the first frame in its sentence."""
    skip: int
    """Frames before the stretch."""
    keep: int
    """Frames of the stretch."""


class Phonemize(msgspec.Struct, frozen=True, tag=True):
    job: int
    text: str
    language: str
    """As espeak-ng names it."""


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


class Phonemes(msgspec.Struct, frozen=True, tag=True):
    job: int
    text: str


class SpeechFailed(msgspec.Struct, frozen=True, tag=True):
    """A job has no result: it was aborted, or the voice cannot speak it."""

    job: int
    why: str


SpeechJob = Synthesize | DecodeCodes | Phonemize
SpeechInbox = StartSpeech | SpeechJob | AbortSpeech
SpeechOutbox = SpeechReady | SpeechRefused | SpeechPart | SpeechPiece | Phonemes | SpeechFailed

encode_speech: Final = msgspec.msgpack.Encoder().encode
decode_speech_inbox: Final = msgspec.msgpack.Decoder(SpeechInbox)
decode_speech_outbox: Final = msgspec.msgpack.Decoder(SpeechOutbox)
