"""Voices by recordings: ``voices/`` in the folder of a checkpoint, or a folder that the operator names."""

from pathlib import Path
from typing import Final

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.errors import CheckpointError
from .form import Recordings, Voices

_FOLDER: Final = "voices"
_MOST_CHARS: Final = 2000
"""Of a transcript. Fifteen seconds are enough, and all of it stands in every prompt."""


def with_recordings(voices: Voices, kind: Recordings, path: Path, named: Path | None) -> Voices:
    """``voices`` behind those of the recordings in ``named``, or else in ``voices/`` of the checkpoint at ``path``.

    Raises :class:`CheckpointError`.
    """
    folder = path / _FOLDER if named is None else named
    suffixes = (*((".wav",) if kind.sounds else ()), *kind.others)
    files = {file.stem: file for file in sorted(folder.glob("*"), reverse=True) if file.suffix in suffixes}
    made = tuple(
        VoicePlace(name, str(path), style=str(file), transcript=_transcript(file) if kind.transcripts else None)
        for name, file in sorted(files.items())
    )
    if not made and (named is not None or not voices.places):
        raise CheckpointError(_missing(kind, folder, named))
    return voices._replace(places=(*made, *(place for place in voices.places if place.name not in files)))


def _missing(kind: Recordings, folder: Path, named: Path | None) -> str:
    others = [f"NAME{ending}" for ending in kind.others]
    sounds = ["a recording for each voice, NAME.wav (16 bits, one channel)"] if kind.sounds else []
    if kind.transcripts:
        sounds[0] += ", and what is spoken in it, NAME.txt"
    wanted = ", or ".join([*sounds, *others])
    if named is not None:
        return f"--speech-voices: {folder} holds no voice: expected {wanted}"
    return f"{folder} holds no voice: expected {wanted}; or name a folder of them with --speech-voices"


def _transcript(recording: Path) -> str:
    file = recording.with_suffix(".txt")
    try:
        text = " ".join(file.read_text().split())
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}; expected what is spoken in {recording.name}, in UTF-8"
        ) from error
    if not 0 < len(text) <= _MOST_CHARS:
        raise CheckpointError(f"{file} must have 1 to {_MOST_CHARS} characters; it has {len(text)}")
    return text
