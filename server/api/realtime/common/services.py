"""Services of the server for realtime sessions."""

import msgspec

from stentor.protocols.common.limits import Limits

from ....asr.model import TranscriptionModel
from ....asr.streaming import StreamingTranscriptionModel
from ....config.config import RealtimeConfig
from ....config.limits import ConnectionLimits
from ....generation.chat_model import ChatModel
from ....generation.transcription import ChatTranscriber
from ....middleware.client_secrets import ClientSecrets
from ....observability.metrics import Metrics
from ....state.admission_control import AdmissionControl
from ....tts.model import SpeechModel
from ...responses.services import ResponseServices
from .live_calls import LiveCalls


class RealtimeServices(msgspec.Struct, frozen=True):
    """The parts of the server that realtime sessions use."""

    config: RealtimeConfig
    connection: ConnectionLimits
    chat: ChatModel
    transcription: TranscriptionModel | StreamingTranscriptionModel | ChatTranscriber | None
    """None without a transcription model."""
    speech: SpeechModel | None
    """None without a speech model."""
    secrets: ClientSecrets
    """Keys that open sessions."""
    responses: ResponseServices
    """Of the Responses API, to which sessions of the Live API may delegate."""
    host: str
    """The server's configured address."""
    calls: LiveCalls = msgspec.field(default_factory=LiveCalls)

    @property
    def admission(self) -> AdmissionControl:
        return self.chat.admission

    @property
    def limits(self) -> Limits:
        """Limits of one request."""
        return self.chat.limits

    @property
    def metrics(self) -> Metrics:
        return self.chat.metrics
