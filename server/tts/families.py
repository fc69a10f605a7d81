"""Language models that speak: what each family is asked, in which words it answers, and how it is sampled.

Such a model is a decoder whose vocabulary has a word for each code of a codec. It continues a prompt by frames of
those words, and a word that ends them. A family is one value here: how its prompt is written, its words, its codec, its
makers' sampling, its voices.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from stentor.protocols.ipc.speech import CodecBackend

from ..text.tokenizers.tokenizer import Tokenizer


class Reference(msgspec.Struct, frozen=True):
    """A voice by a recording of it."""

    text: str
    """What is spoken in it."""
    codes: list[int]
    """Of the recording, by the model's codec."""


class PromptWriter(Protocol):
    """What a family may put into a prompt."""

    def word(self, text: str) -> int:
        """The token of one of the model's own words."""

    async def encode(self, text: str, *, whole: bool = False) -> list[int]:
        """Tokens of a text; ``whole``: with those that the tokenizer puts around a prompt."""

    async def conversation(self, question: str, answer: str) -> list[int]:
        """Tokens of the chat template, up to the end of an answer that goes on."""

    async def spoken(self, text: str) -> str:
        """A text as the model reads it: itself, or its phonemes."""

    def codes(self, codes: list[int]) -> list[int]:
        """The words of codes."""


Write = Callable[[PromptWriter, str, str, Reference | None], Awaitable[list[int]]]
"""The prompt for a text, in the voice of a name or of a reference."""


class SpeechSampling(msgspec.Struct, frozen=True):
    """The makers' own, by the names of :class:`~stentor.protocols.ipc.sampling.SamplingParams`."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    min_frames: int = 0


class SpeechFamily(msgspec.Struct, frozen=True):
    """One family."""

    name: str
    codec: CodecBackend
    codec_model: str
    """The codec's name, where the operator names none."""
    code_word: str
    """The word of a code, with ``{}`` for its number; those of a frame's second code follow the first's, and so on."""
    first_number: int
    """In the word of the code 0."""
    end: str
    """The word that ends the codes."""
    write: Write
    sampling: SpeechSampling
    voices: tuple[str, ...] = ()
    """Names that the model knows; if empty, references are its voices."""
    needs_reference: bool = False
    """Whether it cannot speak without one."""
    phonemes: bool = False
    tags: frozenset[str] = frozenset()
    """Sounds that a text may name, in angle brackets."""


DEFAULT_VOICE: Final = "default"


async def _orpheus(writer: PromptWriter, text: str, voice: str, _reference: Reference | None) -> list[int]:
    said = await writer.encode(f"{voice}: {text}", whole=True)
    start, *end = (writer.word(f"<custom_token_{number}>") for number in (3, 4, 5, 1))
    return [start, *said, writer.word("<|eot_id|>"), *end]


async def _neutts(writer: PromptWriter, text: str, _voice: str, reference: Reference | None) -> list[int]:
    assert reference is not None, "the family needs one"
    said = f"{await writer.spoken(reference.text)} {await writer.spoken(text)}"
    return [
        *await writer.encode("user: Convert the text to speech:", whole=True),
        writer.word("<|TEXT_PROMPT_START|>"),
        *await writer.encode(said),
        writer.word("<|TEXT_PROMPT_END|>"),
        *await writer.encode("\nassistant:"),
        writer.word("<|SPEECH_GENERATION_START|>"),
        *writer.codes(reference.codes),
    ]


async def _llasa(writer: PromptWriter, text: str, _voice: str, reference: Reference | None) -> list[int]:
    said = text if reference is None else f"{reference.text} {text}"
    asked = f"Convert the text to speech:<|TEXT_UNDERSTANDING_START|>{said}<|TEXT_UNDERSTANDING_END|>"
    prompt = await writer.conversation(asked, "<|SPEECH_GENERATION_START|>")
    return prompt if reference is None else [*prompt, *writer.codes(reference.codes)]


FAMILIES: Final = (
    SpeechFamily(
        "NeuTTS",
        "neucodec",
        "neuphonic/neucodec",
        code_word="<|speech_{}|>",
        first_number=0,
        end="<|SPEECH_GENERATION_END|>",
        write=_neutts,
        sampling=SpeechSampling(1.0, top_k=50, min_frames=50),
        needs_reference=True,
        phonemes=True,
    ),
    SpeechFamily(
        "Orpheus",
        "snac",
        "hubertsiuzdak/snac_24khz",
        code_word="<custom_token_{}>",
        first_number=10,
        end="<custom_token_2>",
        write=_orpheus,
        sampling=SpeechSampling(0.6, top_p=0.8, repetition_penalty=1.3),
        voices=("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe"),
        tags=frozenset(("laugh", "chuckle", "sigh", "cough", "sniffle", "groan", "yawn", "gasp")),
    ),
    SpeechFamily(
        "Llasa",
        "xcodec2",
        "HKUSTAudio/xcodec2-hf",
        code_word="<|s_{}|>",
        first_number=0,
        end="<|SPEECH_GENERATION_END|>",
        write=_llasa,
        sampling=SpeechSampling(0.8),
    ),
)


def family_of(tokenizer: Tokenizer) -> SpeechFamily | None:
    """The family whose words a tokenizer has; None if it has none of them."""
    known = tokenizer.backend.token_to_id
    for family in FAMILIES:
        words = (family.code_word.format(family.first_number), family.end)
        if all(known(word) is not None for word in words):
            return family
    return None
