"""Options of a transcription."""

from typing import Final, Literal

import msgspec

from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.openai.beams import Beams

TEMPERATURE_FALLBACK: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures that are tried one after the other until a transcript is good enough."""
MAX_TOKENS: Final = 224
"""Tokens of one window; half of Whisper's context."""
MAX_PROMPT_TOKENS: Final = 223
"""Tokens of the preceding text; its end is kept."""

Task = Literal["transcribe", "translate"]


class Chunking(msgspec.Struct, frozen=True):
    """Cuts audio at silence for parallel transcription. As OpenAI's ``server_vad``."""

    threshold: float = 0.5
    """Probability of speech above which a frame is speech."""
    prefix_padding_ms: int = 300
    """Kept before speech, and after it."""
    silence_duration_ms: int = 500
    """Silence that ends speech."""


class SamplingOptions(msgspec.Struct, frozen=True):
    """Sampling besides the temperature; neutral by default."""

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    """Unsigned 64 bits; None draws one for each window."""


class TranscriptionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults are those of Whisper's long-form transcription."""

    language: str | None = None
    """A code of the model's languages; None detects it, or is English for English-only models."""
    languages: tuple[str, ...] = ()
    """Codes among which one is detected; empty means all of the model's."""
    task: Task = "transcribe"
    written_language: str = "en"
    """The code of a translation's language."""
    prompt: str = ""
    """Text before the audio, as context."""
    temperatures: tuple[float, ...] = TEMPERATURE_FALLBACK
    timestamps: bool = True
    """Without, audio is cut every 30 seconds, within a word or not."""
    word_times: bool = False
    logprobs: bool = False
    """Log-probabilities of every token of a segment."""
    condition_on_previous_text: bool = True
    """Whether each window gets the text of earlier ones."""
    compression_ratio_threshold: float = 2.4
    """Text with a higher ratio repeats itself and is decoded again at the next temperature."""
    logprob_threshold: float = -1.0
    """So is text with a lower average log-probability."""
    no_speech_threshold: float = 0.6
    """A window with a higher probability, and a low average log-probability, is silence."""
    reset_temperature: float = 0.5
    """Text decoded at a higher temperature is not passed to the next window."""
    max_tokens: int = MAX_TOKENS
    """Tokens of one window."""
    chunking: Chunking | None = None
    """None transcribes one window after another."""
    sampling: SamplingOptions = SamplingOptions()
    beams: Beams | None = None
    """The beam search that decodes at temperature 0, as in the original; None decodes greedily."""
    priority: int = 0
    salt: str = ""
    """Requests with the same salt share encoded audio."""
    name: str = ""
    """The request's id, for logs."""
    adapter: AdapterRef | None = None
    """The LoRA adapter."""
