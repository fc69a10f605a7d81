"""Sound as events: pieces of the file in base64, and at the end what it has cost."""

import base64
from typing import Final

import msgspec

from stentor.protocols.openai.speech import TOKENS_A_SECOND, SpeechDelta, SpeechDone, SpeechUsage

from ...http.sse import DONE

_encode: Final = msgspec.json.Encoder().encode


class SpokenLength:
    """How much has been said; counted where it is made."""

    def __init__(self) -> None:
        self.seconds = 0.0


class SpeechEvents:
    """Of one file that is sent while it is made."""

    def __init__(self, input_tokens: int, heard: SpokenLength) -> None:
        """``heard`` is counted by whoever makes the sound."""
        self._input_tokens = input_tokens
        self._heard = heard
        self.failed: Final = False

    def encode(self, batch: bytes) -> bytes:
        """The frame of one piece of the file."""
        return _frame(SpeechDelta(base64.b64encode(batch).decode()))

    def end(self) -> bytes:
        spoken = round(self._heard.seconds * TOKENS_A_SECOND)
        usage = SpeechUsage(self._input_tokens, spoken, self._input_tokens + spoken)
        return _frame(SpeechDone(usage)) + DONE


class SpeechBytes:
    """The file itself."""

    def __init__(self) -> None:
        self.failed: Final = False

    def encode(self, batch: bytes) -> bytes:
        return batch

    def end(self) -> bytes:
        return b""


def _frame(event: msgspec.Struct) -> bytes:
    return b"data: " + _encode(event) + b"\n\n"
