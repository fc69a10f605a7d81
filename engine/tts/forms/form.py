"""A form of voices: how a folder or file of it is recognised and read."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from stentor.protocols.ipc.speech import SpeechBackend, VoicePlace

from ...loading.errors import CheckpointError

T = TypeVar("T")


class Voices(NamedTuple):
    backend: SpeechBackend
    places: tuple[VoicePlace, ...]
    """The first is the default. Empty only in what a :class:`Form` with recordings reads, if each voice is one."""
    sample_rate: int
    any_speed: bool = True
    """False if the voices speak at a speed of 1 only."""
    whole_texts: bool = False
    """Whether a text is one piece of work, not cut into sentences."""


class Recordings(NamedTuple):
    """Voices by recordings: the files of a folder, ``NAME.wav``, of 16 bits and one channel."""

    sounds: bool = True
    """False if the model cannot read a recording itself, and :attr:`others` are its voices."""
    transcripts: bool = False
    """Whether ``NAME.txt`` says what is spoken in it."""
    others: tuple[str, ...] = ()
    """Endings of other files that make a voice."""


class Form(NamedTuple):
    expected: str
    """The files of a voice, for a path that has none."""
    read: Callable[[Path], Voices | None]
    """The voices at a path; None if they are not of this form. Raises :class:`CheckpointError`."""
    recordings: Recordings | None = None
    """Files that add voices; None if the form has its own only."""


def read_json(file: Path, kind: type[T]) -> T:
    """Raises :class:`CheckpointError`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


class _Typed(msgspec.Struct):
    model_type: str = ""


def model_type_of(folder: Path) -> str | None:
    """``model_type`` of the folder's config.json; None without one. Raises :class:`CheckpointError`."""
    file = folder / "config.json"
    return read_json(file, _Typed).model_type if file.is_file() else None
