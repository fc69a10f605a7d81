"""A folder with ``voices.json``, ``vocab.json`` and models that the first one names holds voices of Hibari, such as
those of the package ``hibari-tts``: small English models distilled from voices of Kokoro."""

from pathlib import Path
from typing import Final

import msgspec

from stentor.protocols.ipc.speech import VoicePlace

from ...loading.errors import CheckpointError
from ...loading.voice_files import HIBARI_VOCABULARY, HIBARI_VOICES, is_hibari
from ..english import require_english
from .form import Form, Voices, read_json

SAMPLE_RATE: Final = 24_000


class _Voice(msgspec.Struct):
    file: str
    british: bool = False


def _read(path: Path) -> Voices | None:
    folder = path.parent if path.is_file() else path
    if not is_hibari(folder):
        return None
    known = read_json(folder / HIBARI_VOICES, dict[str, _Voice])
    places = [
        VoicePlace(name, str(file), language="en-gb" if voice.british else "en-us")
        for name, voice in known.items()
        if (file := folder / Path(voice.file).name).is_file() and path in (folder, file)
    ]
    if not places:
        wanted = ", ".join(voice.file for voice in known.values()) or "no model"
        found = "none of them is there" if path == folder else f"{path.name} is none of them"
        raise CheckpointError(f"{folder / HIBARI_VOICES} names {wanted}, and {found}: fetch the models again")
    require_english(places[0].name)
    return Voices("hibari", tuple(places), SAMPLE_RATE)


HIBARI: Final = Form(f"voices of Hibari ({HIBARI_VOICES}, {HIBARI_VOCABULARY} and the models they name)", _read)
