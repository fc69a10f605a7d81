"""Reads the voices of a folder: ``NAME.json`` with what a recording says and its codes."""

from pathlib import Path
from typing import Final

import msgspec

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts.codecs import Codec

from .families import Reference

MOST_SECONDS: Final = 60
"""Of a recording. Fifteen are enough, and all stand in every prompt."""
_MOST_BYTES: Final = 1 << 20
_MOST_CHARS: Final = 2000


def read_references(folder: Path, codec: Codec) -> dict[str, Reference]:
    """The voices by name, in alphabetical order. Raises :class:`CheckpointError`."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise CheckpointError(
            f'--speech-voices: {folder} holds no voice: expected files NAME.json with {{"text": …, "codes": […]}}'
        )
    return {file.stem: _read(file, codec) for file in files}


def _read(file: Path, codec: Codec) -> Reference:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise CheckpointError(f"--speech-voices: {file} has more than {_MOST_BYTES} bytes; expected one recording")
        found = msgspec.json.decode(file.read_bytes(), type=Reference)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"--speech-voices: {file} cannot be read: {error}") from error
    most = int(MOST_SECONDS * codec.frames_a_second) * codec.frame_codes
    if not found.text.strip() or len(found.text) > _MOST_CHARS:
        raise CheckpointError(f"--speech-voices: the text of {file} must have 1 to {_MOST_CHARS} characters")
    if not 0 < len(found.codes) <= most or len(found.codes) % codec.frame_codes:
        raise CheckpointError(
            f"--speech-voices: {file} has {len(found.codes)} codes; expected whole frames of {codec.frame_codes}, and "
            f"at most {MOST_SECONDS} seconds of them"
        )
    if not all(0 <= code < codec.codebook for code in found.codes):
        raise CheckpointError(f"--speech-voices: {file} has a code outside 0 to {codec.codebook - 1}")
    return found
