"""A speech process whose sentences say what becomes of it: a real process with a voice that is made up.

A sentence lasts a millisecond of audio (eight samples) a character, and takes no time; "slow", "die", "hang", "refuse"
and "unready" do what they say, "die once" only in the first of the processes that use its folder, and "ages" is
interrupted only by who gives it up. What is said "bit by bit" comes in four parts; the first
process that "falls" is killed after the second.
"""

import os
import signal
import sys
import time
from pathlib import Path

from stentor.engine.tts import process
from stentor.engine.tts.backend import CannotSpeak, Part, Stop, Stopped, Synthesizer, keep_whole
from stentor.protocols.ipc.speech import StartSpeech, VoicePlace

MODULE = "stentor.tests.engine.tts.fake_voice"
RATE = 8000


class FakeVoice:
    def __init__(self, start: StartSpeech) -> None:
        self._folder = Path(start.voices[0].path)
        with (self._folder / "lives").open("a") as lives:
            lives.write(".")
        if (self._folder / "unready").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if (self._folder / "refuse").exists():
            raise CannotSpeak("the voice has no mouth")

    def speak(self, text: str, voice: VoicePlace, speed: float, stop: Stop, part: Part = keep_whole) -> bytes:
        with (self._folder / "said").open("a") as said:
            said.write(f"{text}\n")
        if "die once" in text:
            if not (self._folder / "died").exists():
                (self._folder / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        elif "die" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if "refuse" in text:
            raise CannotSpeak("it is too shy")
        if "break" in text:
            raise RuntimeError("a surprise")
        if "hang" in text:
            time.sleep(3600)
        deadline = time.monotonic() + (3600 if "ages" in text else 0.2 if "slow" in text else 0)
        while time.monotonic() < deadline:
            if stop.is_set:
                raise Stopped
            time.sleep(0.005)
        pcm = bytes([len(voice.name), 1]) * int(8 * len(text) / speed)
        if "bit by bit" not in text:
            return pcm
        pcm = bytes(number % 251 for number in range(len(pcm)))
        size = len(pcm) // 8 * 2
        for start in range(0, 3 * size, size):
            part(pcm[start : start + size])
            if start and "falls" in text and not (self._folder / "died").exists():
                (self._folder / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return pcm[3 * size :]


def load(start: StartSpeech) -> Synthesizer:
    return FakeVoice(start)


if __name__ == "__main__":
    process.load = load
    sys.exit(process.main())
