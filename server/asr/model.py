"""A transcription model, as the server knows it."""

from typing import Final

import anyio
import msgspec

from stentor.protocols.common.errors import refused

from ..text.output.generation import ModelEngine
from .streaming import StreamingTranscriptionModel
from .untimed_vocabulary import UntimedVocabulary
from .vocabulary import Vocabulary

_DETECTIONS: Final = 2
_SHOWN_CHARS: Final = 64
"""Characters of a refused language in the message."""


class TranscriptionModel(msgspec.Struct, frozen=True):
    """Shared by all requests."""

    served_names: tuple[str, ...]
    """Never empty."""
    client: ModelEngine
    vocabulary: Vocabulary | UntimedVocabulary
    streamed: StreamingTranscriptionModel | None = None
    """The same model for audio that comes in pieces; None if it takes whole windows alone."""
    parallel_windows: int = 8
    """Most chunks of one file that are transcribed at the same time."""
    detections: anyio.CapacityLimiter = msgspec.field(default_factory=lambda: anyio.CapacityLimiter(_DETECTIONS))
    """Files in which speech is looked for at the same time."""

    @property
    def multilingual(self) -> bool:
        return self.vocabulary.multilingual

    @property
    def languages(self) -> frozenset[str]:
        """Codes of the languages that it transcribes."""
        return frozenset(self.vocabulary.languages) if self.multilingual else frozenset(("en",))

    def language(self, name: str, field: str) -> str:
        """The code of a language by its code or name. Raises BadRequest where the model does not transcribe it."""
        code = self.vocabulary.knows(name)
        if code is not None:
            return code
        known = (
            f"{len({*self.vocabulary.languages.values()})} languages, by their ISO 639-1 codes"
            if self.multilingual
            else "English alone"
        )
        shown = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
        raise refused(field, f"the model does not transcribe `{shown}`; it transcribes {known}", "invalid_value")
