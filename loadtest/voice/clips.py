"""Sentences as sound: a Piper voice reads them, in a process of its own, once; then they lie in a folder."""

import hashlib
import os
import subprocess
import sys
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stentor.engine.loading.download.hub import DEMO_SPEECH_MODEL, resolve_model

from ..peers.places import cache
from ..tool import ToolError

SENTENCES: Final = tuple((Path(__file__).parent / "sentences.txt").read_text(encoding="utf-8").splitlines())
"""Sixty sentences of everyday English that the voice reads out, so that what was said is known."""
_PAUSE_SECONDS: Final = 0.4
_SENTENCES: Final = 8
"""Of half a minute."""
_STEP: Final = 7
"""Sentences between the beginnings of two files."""
_LEAD_SECONDS: Final = 0.03
"""Of silence before a file, so that none comes twice: the server keeps what it has made of one."""


@dataclass(frozen=True)
class Clip:
    """A sound file, and what is said in it."""

    path: Path
    text: str

    @property
    def seconds(self) -> float:
        with wave.open(str(self.path)) as file:
            return float(file.getnframes() / file.getframerate())


def spoken(texts: Sequence[str], *, natural: bool = True) -> list[Clip]:
    """Each text as a WAV file, made where it does not lie in the cache yet.

    Speech that is not ``natural`` is the same for the same text. Raises :class:`ToolError` where Piper is not installed
    or cannot speak.
    """
    folder = cache("voice") / hashlib.sha256(f"{DEMO_SPEECH_MODEL} {natural}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    clips = [Clip(folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.wav", text) for text in texts]
    missing = [clip for clip in clips if not clip.path.is_file()]
    if missing:
        _speak(missing, folder, natural=natural)
    return clips


def joined(clips: Sequence[Clip], target: Path, lead_seconds: float = 0.0) -> Clip:
    """One clip after the other, with pauses between them and so much silence before, written to ``target``."""
    with wave.open(str(target), "wb") as made:
        for number, clip in enumerate(clips):
            with wave.open(str(clip.path)) as file:
                rate = file.getframerate()
                if not number:
                    made.setparams(file.getparams())
                    made.writeframes(bytes(2 * int(rate * lead_seconds)))
                made.writeframes(file.readframes(file.getnframes()))
            made.writeframes(bytes(2 * int(rate * _PAUSE_SECONDS)))
    return Clip(target, " ".join(clip.text for clip in clips))


def half_minute(clips: Sequence[Clip], number: int, lead: float, target: Path) -> Clip:
    """About half a minute: sentences that ``number`` chooses, after silence of which ``lead`` says how much."""
    begin = _STEP * number % (len(clips) - _SENTENCES + 1)
    return joined(clips[begin : begin + _SENTENCES], target, _LEAD_SECONDS * lead)


def _speak(clips: Sequence[Clip], folder: Path, *, natural: bool) -> None:
    model = min(resolve_model(DEMO_SPEECH_MODEL).rglob("*.onnx"))
    scratch = folder / f"making-{os.getpid()}"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "piper", "-m", str(model), "-d", str(scratch)]
    if not natural:
        command += ["--noise-scale", "0", "--noise-w-scale", "0"]
    done = subprocess.run(
        command, input="".join(clip.text + "\n" for clip in clips), text=True, capture_output=True, check=False
    )
    made = sorted(scratch.glob("*.wav"), key=lambda path: int(path.stem))
    if done.returncode or len(made) != len(clips):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ToolError(f"Piper cannot speak ({last}); it comes with the extra `speech`")
    for clip, path in zip(clips, made, strict=True):
        path.replace(clip.path)
    scratch.rmdir()
