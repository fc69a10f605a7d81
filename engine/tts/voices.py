"""Finds the voices in a folder, and their form. Only descriptions are read."""

from pathlib import Path
from typing import Final

from ..loading.errors import CheckpointError
from .forms.form import Form, Voices
from .forms.hibari import HIBARI
from .forms.kokoro import KOKORO
from .forms.piper import PIPER
from .forms.pocket import POCKET
from .forms.vits import VITS

__all__ = ["VOICE_FORMS", "Voices", "read_voices"]

VOICE_FORMS: Final[tuple[Form, ...]] = (
    HIBARI,
    VITS,
    POCKET,
    KOKORO,
    PIPER,  # the last: every .onnx file that is nothing else is taken for one
)


def read_voices(path: Path) -> Voices:
    """The voices of a folder or of one ``.onnx`` file. Raises :class:`CheckpointError`."""
    for form in VOICE_FORMS:
        if (voices := form.read(path)) is not None:
            return voices
    raise CheckpointError(f"{path} holds no voice: expected {', or '.join(form.expected for form in VOICE_FORMS)}")
