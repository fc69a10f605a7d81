"""Finds the voices in a folder, and their form. Only descriptions are read."""

from pathlib import Path
from typing import Final

from ..loading.errors import CheckpointError
from .forms.bark import BARK
from .forms.csm import CSM
from .forms.dia import DIA
from .forms.form import Form, Voices
from .forms.hibari import HIBARI
from .forms.higgs import HIGGS
from .forms.kokoro import KOKORO
from .forms.musicgen import MUSICGEN
from .forms.piper import PIPER
from .forms.pocket import PHONON, POCKET
from .forms.recordings import with_recordings
from .forms.seamless import SEAMLESS
from .forms.speecht5 import SPEECHT5
from .forms.vibevoice import VIBEVOICE
from .forms.vits import VITS

__all__ = ["VOICE_FORMS", "Voices", "read_voices"]

MIN_RATE: Final = 1_000
MAX_RATE: Final = 768_000
"""Samples a second that the server can send in other rates."""
VOICE_FORMS: Final[tuple[Form, ...]] = (
    HIBARI,
    VITS,
    POCKET,
    PHONON,
    CSM,
    DIA,
    HIGGS,
    VIBEVOICE,
    SPEECHT5,
    BARK,
    SEAMLESS,
    MUSICGEN,
    KOKORO,
    PIPER,  # the last: every .onnx file that is nothing else is taken for one
)


def read_voices(path: Path, recordings: Path | None = None) -> Voices:
    """The voices of a folder or of one ``.onnx`` file; ``recordings``: a folder of recordings that are voices, in place
    of those beside the model. Raises :class:`CheckpointError`."""
    for form in VOICE_FORMS:
        if (voices := form.read(path)) is None:
            continue
        if not MIN_RATE <= voices.sample_rate <= MAX_RATE:
            raise CheckpointError(
                f"{path} has a sampling rate of {voices.sample_rate} Hz, expected {MIN_RATE} to {MAX_RATE}"
            )
        if form.recordings is not None:
            return with_recordings(voices, form.recordings, path, recordings)
        if recordings is not None:
            raise CheckpointError(
                f"--speech-voices: {path} is {form.expected}, which has voices of its own and takes no others"
            )
        return voices
    raise CheckpointError(f"{path} holds no voice: expected {', or '.join(form.expected for form in VOICE_FORMS)}")
