"""What a session hears with, made of the models that are served."""

from typing import Final

from stentor.protocols.openai.errors import BadRequest

from ..audio.vad import SpeechProbabilities
from ..door.keys import Caller
from ..state import ServerState
from .ears import SessionEars
from .partial_pace import PartialPace
from .parts import Ears, OnPartial
from .transcribing import ModelTranscriber

NOTHING_HEARS: Final = (
    "Audio input needs a transcription model, and none is served; send text, or start the server with "
    "--transcription-model."
)


class EarOpener:
    """Opens the ears of every session of one server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._pace = PartialPace()

    def open(self, caller: Caller, on_partial: OnPartial) -> Ears:
        """Raises BadRequest where nothing hears."""
        model = self._state.transcription
        if model is None:
            raise BadRequest(NOTHING_HEARS, "audio", "unsupported")
        return SessionEars(ModelTranscriber(model, caller.salt), SpeechProbabilities, self._pace, on_partial)
