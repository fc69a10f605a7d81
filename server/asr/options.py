"""How something is to be transcribed."""

from typing import Final, Literal

import msgspec

from stentor.protocols.ipc.adapters import AdapterRef

TEMPERATURE_FALLBACK: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures that are tried one after the other until a transcript is good enough."""
MAX_TOKENS: Final = 224
"""Of one window; half of Whisper's context."""
MAX_PROMPT_TOKENS: Final = 223
"""Of what is said to come before: its end is kept."""

Task = Literal["transcribe", "translate"]


class Chunking(msgspec.Struct, frozen=True):
    """Audio is cut where nobody speaks, and its chunks are heard side by side. As OpenAI's ``server_vad``."""

    threshold: float = 0.5
    """Probability of speech above which somebody speaks."""
    prefix_padding_ms: int = 300
    """Kept before speech, and after it."""
    silence_duration_ms: int = 500
    """Of silence that ends speech."""


class SamplingOptions(msgspec.Struct, frozen=True):
    """How tokens are drawn besides the temperature; neutral unless the client says otherwise."""

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
    """A code of the model's languages; None has it detected, or is English where the model knows nothing else."""
    languages: tuple[str, ...] = ()
    """Codes among which one is detected; empty means all of the model's."""
    task: Task = "transcribe"
    prompt: str = ""
    """Text that is said to come before."""
    temperatures: tuple[float, ...] = TEMPERATURE_FALLBACK
    timestamps: bool = True
    """Without, audio is cut every 30 seconds, within a word or not."""
    word_times: bool = False
    logprobs: bool = False
    """Of every token of a segment."""
    condition_on_previous_text: bool = True
    """Each window is told what was heard in those before."""
    compression_ratio_threshold: float = 2.4
    """What is above repeats itself and is tried again at the next temperature."""
    logprob_threshold: float = -1.0
    """So is what is less likely, a token on average."""
    no_speech_threshold: float = 0.6
    """What is above, and unlikely by the other measure, is silence."""
    reset_temperature: float = 0.5
    """What was heard at a higher one is not told to the next window."""
    max_tokens: int = MAX_TOKENS
    """Of one window."""
    chunking: Chunking | None = None
    """None transcribes one window after the other."""
    sampling: SamplingOptions = SamplingOptions()
    priority: int = 0
    salt: str = ""
    """Only requests of the same salt share what the model has made of the same audio."""
    name: str = ""
    """The request's id, for logs."""
    adapter: AdapterRef | None = None
    """What is added to the model."""
