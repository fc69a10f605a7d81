"""The speech process: ties itself to its owner before the heavy imports.

The main thread reads the mailbox; another one works, so that a sentence can be cancelled.
"""

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stentor.protocols.ipc.speech import (
    AbortSpeech,
    DecodeCodes,
    Phonemes,
    Phonemize,
    SpeechFailed,
    SpeechInbox,
    SpeechJob,
    SpeechOutbox,
    SpeechPart,
    SpeechPiece,
    SpeechReady,
    SpeechRefused,
    StartSpeech,
    Synthesize,
    VoicePlace,
    decode_speech_inbox,
    encode_speech,
)

from ..channel import ChannelError, Endpoint
from ..processes.freed_memory import grown_since, resident_bytes
from ..processes.logs import set_up_logging, trace_without_messages
from ..processes.process import become_child
from .backend import CannotSpeak, CodecDecoder, Stop, Stopped, Synthesizer

logger = logging.getLogger(__name__)

MODULE: Final = "stentor.engine.tts.process"
IDLE_SECONDS: Final = 5.0
ABORTED: Final = "aborted"


def main() -> int:
    inherited = become_child("stentor-speech")
    owner = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        return _SpeechProcess(owner).run()
    except ChannelError:
        return 0  # the owner is gone or has ended the channel


class _Job:
    def __init__(self, request: SpeechJob) -> None:
        self.request: Final = request
        self.stop: Final = Stop()


class _SpeechProcess:
    def __init__(self, owner: Endpoint) -> None:
        self._owner = owner
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()  # bounded by its owner, which sends few at a time
        self._known: dict[int, _Job] = {}
        """Unanswered jobs. Each of the two threads changes only its own entries."""

    def run(self) -> int:
        pending = self._receive()
        start = pending.pop(0)
        if not isinstance(start, StartSpeech):
            raise TypeError(f"the first message must be StartSpeech, not {type(start).__name__}")
        set_up_logging(start.log_level, start.log_format, "speech")
        began = time.monotonic()
        try:
            synthesizer = load(start)
        except CannotSpeak as error:
            self._send(SpeechRefused(str(error)))
            return 1
        self._send(SpeechReady(time.monotonic() - began))
        voices = {place.name: place for place in start.voices}
        threading.Thread(target=self._work, args=(synthesizer, voices), name="speech", daemon=True).start()
        while True:
            for message in pending:
                self._handle(message)
            pending = self._receive()

    def _receive(self) -> list[SpeechInbox]:
        return [decode_speech_inbox.decode(frame) for frame in self._owner.receive_blocking()]

    def _send(self, message: SpeechOutbox) -> None:
        self._owner.send_blocking(encode_speech(message))

    def _handle(self, message: SpeechInbox) -> None:
        match message:
            case Synthesize() | DecodeCodes() | Phonemize():
                job = self._known[message.job] = _Job(message)
                self._jobs.put(job)
            case AbortSpeech():
                if (known := self._known.get(message.job)) is not None:
                    known.stop.set()
            case StartSpeech():
                raise TypeError("StartSpeech came twice")

    def _next_job(self, born: int) -> _Job:
        """Wait for a job; after some idle time, return freed memory to the system."""
        try:
            return self._jobs.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            grown_since(born)
        return self._jobs.get()

    def _work(self, synthesizer: Synthesizer | CodecDecoder, voices: dict[str, VoicePlace]) -> None:
        born = resident_bytes()
        while True:
            job = self._next_job(born)
            try:
                answer = _answer(synthesizer, voices, job, self._send)
                del self._known[job.request.job]
                self._send(answer)
            except ChannelError:
                return  # the main thread notices too


def load(start: StartSpeech) -> Synthesizer | CodecDecoder:
    """Load the voices or the codec. Raises :class:`CannotSpeak`."""
    # each takes half a second or more to import, and only one is needed
    match start.backend:
        case "piper":
            from .piper import PiperSynthesizer

            return PiperSynthesizer(start.voices, start.threads)
        case "vits":
            from .transformers.vits import VitsSynthesizer

            return VitsSynthesizer(start.voices, start.threads)
        case "hibari":
            from .hibari import HibariSynthesizer

            return HibariSynthesizer(start.voices, start.threads)
        case "kokoro":
            from .kokoro import KokoroSynthesizer

            return KokoroSynthesizer(start.voices, start.threads)
        case "pocket":
            from .transformers.pocket import PocketSynthesizer

            return PocketSynthesizer(start.voices, start.threads)
        case "csm":
            from .transformers.csm import CsmSynthesizer

            return CsmSynthesizer(start.voices, start.threads)
        case "dia":
            from .transformers.dia import DiaSynthesizer

            return DiaSynthesizer(start.voices, start.threads)
        case "higgs":
            from .transformers.higgs import HiggsSynthesizer

            return HiggsSynthesizer(start.voices, start.threads)
        case "vibevoice":
            from .transformers.vibevoice import VibeVoiceSynthesizer

            return VibeVoiceSynthesizer(start.voices, start.threads)
        case "speecht5":
            from .transformers.speecht5 import SpeechT5Synthesizer

            return SpeechT5Synthesizer(start.voices, start.threads)
        case "bark":
            from .transformers.bark import BarkSynthesizer

            return BarkSynthesizer(start.voices, start.threads)
        case "seamless":
            from .transformers.seamless import SeamlessSynthesizer

            return SeamlessSynthesizer(start.voices, start.threads)
        case "musicgen":
            from .transformers.musicgen import MusicgenSynthesizer

            return MusicgenSynthesizer(start.voices, start.threads)
        case "snac":
            from .snac import SnacDecoder

            return SnacDecoder(Path(start.voices[0].path), start.threads)
        case "neucodec" | "xcodec2":
            from .vocos import VocosDecoder

            return VocosDecoder(start.backend, Path(start.voices[0].path), start.threads)


def _answer(
    synthesizer: Synthesizer | CodecDecoder,
    voices: dict[str, VoicePlace],
    job: _Job,
    send: Callable[[SpeechPart], None],
) -> SpeechPiece | Phonemes | SpeechFailed:
    request = job.request
    began = time.monotonic()
    if job.stop.is_set:
        return SpeechFailed(request.job, ABORTED)
    try:
        made = _made(synthesizer, voices, request, job.stop, send)
    except ChannelError:
        raise
    except Stopped:
        return SpeechFailed(request.job, ABORTED)
    except CannotSpeak as error:
        return SpeechFailed(request.job, str(error))
    except Exception as error:
        logger.error("a sentence cannot be spoken", extra={"trace": trace_without_messages(error)})
        return SpeechFailed(request.job, "the voice failed on this sentence")
    if isinstance(made, str):
        return Phonemes(request.job, made)
    return SpeechPiece(request.job, made, time.monotonic() - began)


def _made(
    synthesizer: Synthesizer | CodecDecoder,
    voices: dict[str, VoicePlace],
    request: SpeechJob,
    stop: Stop,
    send: Callable[[SpeechPart], None],
) -> bytes | str:
    """Samples that were not sent, or phonemes."""

    def part(pcm: bytes) -> None:
        send(SpeechPart(request.job, pcm))

    match request:
        case Synthesize() if isinstance(synthesizer, Synthesizer):
            return synthesizer.speak(request.text, voices[request.voice], request.speed, stop, part)
        case DecodeCodes() if isinstance(synthesizer, CodecDecoder):
            return synthesizer.decode(request.codes, request.first, request.skip, request.keep, stop)
        case Phonemize():
            from .phonemes import phonemes_of  # late: espeak-ng, which few models need

            return phonemes_of(request.text, request.language)
        case _:
            raise TypeError(f"{type(request).__name__} is not for this backend")


if __name__ == "__main__":
    sys.exit(main())
