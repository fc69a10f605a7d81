"""What a session hears with, made of the models that are served."""

from typing import Final

from stentor.protocols.common.errors import BadRequest

from ...asr.streaming import StreamingTranscriptionModel
from ...audio.vad import SpeechProbabilities
from ...common.keys import Caller
from ...observability.request import current_request_id
from ...state.state import ServerState
from .audio_budget import AudioShare
from .input_audio_pipeline import InputAudioPipeline
from .partial_pace import PartialPace
from .parts import Ears, OnHeard, OnPartial
from .streamed import AnyTranscriber, StreamTranscriber
from .transcribing import ModelTranscriber

NOTHING_HEARS: Final = (
    "Audio input needs a transcription model, and none is served; send text, or start the server with "
    "--transcription-model."
)


class EarOpener:
    """Opens the ears of every session of one server."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self.pace: Final = PartialPace(state.metrics.realtime.partial_interval.observe)

    def transcriber(self, caller: Caller) -> AnyTranscriber:
        """Raises BadRequest where nothing hears."""
        model, passes = self._state.transcription, self._state.metrics.realtime.passes
        if model is None:
            raise BadRequest(NOTHING_HEARS, "audio", "unsupported")
        if isinstance(model, StreamingTranscriptionModel):
            return StreamTranscriber(model, passes, caller.salt, current_request_id())
        return ModelTranscriber(model, passes, caller.salt, current_request_id())

    def open(self, caller: Caller, share: AudioShare, on_partial: OnPartial, on_heard: OnHeard) -> Ears:
        """Raises BadRequest where nothing hears."""
        return InputAudioPipeline(
            self.transcriber(caller),
            SpeechProbabilities,
            self.pace,
            on_partial,
            on_heard,
            on_lag=self._state.metrics.realtime.transcription_lag.observe,
            max_seconds=self._state.realtime.max_input_seconds,
            share=share,
        )
