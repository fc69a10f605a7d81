"""Transcription prompts of chat models, each in the format of its training."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from stentor.protocols.common.errors import refused

from .languages import NAMES, code_of
from .omnilingual import OMNILINGUAL

LANGUAGE: Final = "{language}"
"""Placeholder in texts of an :class:`Asking` for the model's name of the language."""
SECONDS: Final = "{seconds}"
"""Placeholder in :attr:`Asking.text` for the length of the audio."""
Turns = Literal["", "marks", "json"]
"""How an answer says who speaks and when (:data:`.turns.READERS`); "": it does not."""
_SHOWN_CHARS: Final = 64
_SHOWN_LANGUAGES: Final = 200


class Asking(msgspec.Struct, frozen=True):
    """The transcription prompt of one family of models."""

    seconds: int = 30
    """Seconds of audio in one request, at most; longer audio takes several."""
    least_seconds: float = 0.0
    """Shorter audio is padded with silence."""
    says: str = ""
    """The user's text behind the audio, with :data:`LANGUAGE` if a language is named."""
    says_before: str = ""
    """The user's text before the audio."""
    says_to_translate: str = ""
    """The text for a translation into English; empty: not supported."""
    takes_prompt: bool = False
    """Whether the client's ``prompt`` becomes the system message."""
    begins: str = ""
    """How the answer to a request begins that names the language."""
    marker: str = ""
    """Marker before the transcript in an answer without a named language; behind it, an answer that names its language
    begins as :attr:`begins`."""
    text: str = ""
    """The whole prompt, if it is no conversation or another than the template's, with the placeholder of audio."""
    named: str = ""
    """How :attr:`says` and :attr:`text` name the language."""
    unnamed: str = ""
    """What stands in that place if a request names none."""
    diarizes: Turns = ""
    """The form of the turns of speakers, with times, in an answer; then audio is not cut at silences."""
    tokens_a_second: int = 25
    """Tokens of an answer for a second of audio, at most, besides some: a model that repeats itself would go on to the
    end of the context."""
    positions_a_second: int = 20
    """Tokens of the context for a second of audio with its text, at most: Qwen3-ASR takes 13 for the audio."""
    template: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Arguments of the chat template."""
    languages: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The model's names of languages, by code; empty: it takes no hint."""

    def language(self, name: str, param: str) -> str:
        """The code of a language by its code or name. Raises BadRequest where the model does not transcribe it."""
        code = code_of(name) or name.strip().lower()
        if not self.languages or code in self.languages:
            return code
        shown = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
        known = ", ".join(sorted(self.languages)[:_SHOWN_LANGUAGES])
        known += ", …" if len(self.languages) > _SHOWN_LANGUAGES else ""
        raise refused(param, f"the model does not transcribe `{shown}`; it transcribes {known}", "invalid_value")

    def with_tokens(self, texts: Iterable[str]) -> "Asking":
        """The same with the languages that ``texts``, of a vocabulary, name as :attr:`named` does, by what they call
        them; codes remain that are called one of these. A model without :attr:`unnamed` names none by tokens."""
        if not self.unnamed:
            return self
        before, _, behind = self.named.partition(LANGUAGE)
        called = {
            text.removeprefix(before).removesuffix(behind)
            for text in texts
            if text.startswith(before) and text.endswith(behind) and text != self.unnamed
        }
        known = {code: name for code, name in self.languages.items() if name in called}
        return replace(self, languages={**{name: name for name in called}, **known})

    def saying(self, text: str) -> "Asking":
        """The same with another text of the user's; a prompt that is no such text stays."""
        if self.says_before:
            return replace(self, says_before=text)
        return replace(self, says=text) if self.says else self

    def start_of(self, language: str | None) -> str:
        """Beginning of the answer; ``language`` is a code."""
        called = self.languages.get(language or "")
        return self.begins.replace(LANGUAGE, called) if called else ""

    def naming(self, text: str, language: str | None) -> str:
        """:attr:`says` or :attr:`text` for a language by its code."""
        called = self.languages.get(language or "")
        return text.replace(LANGUAGE, self.named.replace(LANGUAGE, called) if called else self.unnamed)

    def told_language(self, head: str) -> str | None:
        """The code of the language that the model has named before the marker."""
        before, _, _ = self.begins.partition(LANGUAGE)
        called = head.strip().removeprefix(before)
        return next((code for code, name in self.languages.items() if name.lower() == called.strip().lower()), None)


_QWEN3_ASR: Final = {
    "ar": "Arabic",
    "yue": "Cantonese",
    "zh": "Chinese",
    "cs": "Czech",
    "da": "Danish",
    "nl": "Dutch",
    "en": "English",
    "fil": "Filipino",
    "fi": "Finnish",
    "fr": "French",
    "de": "German",
    "el": "Greek",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "mk": "Macedonian",
    "ms": "Malay",
    "fa": "Persian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "es": "Spanish",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "vi": "Vietnamese",
}
_VOXTRAL: Final = {code: code for code in ("ar", "nl", "en", "fr", "de", "hi", "it", "pt", "es")}
_MOSS: Final = (
    "请将音频转写为文本，每一段需以起始时间戳和说话人编号（[S01]、[S02]、[S03]…）开头，"  # noqa: RUF001
    "正文为对应的语音内容，并在段末标注结束时间戳，以清晰标明该段语音范围。"  # noqa: RUF001
)


def _fun_asr(sound: str) -> Asking:
    """``sound``: its placeholder."""
    return Asking(
        text=(
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            f"语音转写{LANGUAGE}：{sound}<|im_end|>\n<|im_start|>assistant\n"  # noqa: RUF001
        ),
        named=f"成{LANGUAGE}",
        languages={"zh": "中文", "en": "英文", "ja": "日文"},
    )


_OMNI: Final = Asking(
    says=f"Transcribe this audio{LANGUAGE}.",
    says_to_translate="Translate this audio into English.",
    named=f" into {LANGUAGE}",
    languages={code: name.title() for code, name in NAMES.items()},
)

_GRANITE: Final = Asking(
    says="can you transcribe the speech into a written format?", says_to_translate="translate the speech to English"
)

ASKING: Final[Mapping[str, Asking]] = {
    "AudioFlamingo3ForConditionalGeneration": Asking(says_before="Transcribe the input speech."),
    "FunASRForConditionalGeneration": _fun_asr("<|AUDIO|>"),
    "FunAsrNanoForConditionalGeneration": _fun_asr("<|object_ref_start|>"),
    "MossTranscribeDiarizeForConditionalGeneration": Asking(
        seconds=5400,
        text=(
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|>\n{_MOSS}<|im_end|>\n<|im_start|>assistant\n"
        ),
        diarizes="marks",
    ),
    "GlmAsrForConditionalGeneration": Asking(says="Please transcribe this audio into text"),
    "GraniteSpeechForConditionalGeneration": _GRANITE,
    "GraniteSpeechPlusForConditionalGeneration": _GRANITE,
    "Nemotron3_5TranscribeForConditionalGeneration": Asking(
        seconds=40,
        least_seconds=0.1,
        says_before=(
            "Audio transcription. Language: as spoken. Wording: verbatim, including fillers and repetitions. "
            "Formatting: punctuation and capitalization. Output: transcript only."
        ),
        template={"enable_thinking": False},
    ),
    "OmniASRForConditionalGeneration": Asking(
        text=f"<extra_id_1><extra_id_0>{LANGUAGE}<s>",
        named=f"<|lang:{LANGUAGE}|>",
        unnamed="<|lang:auto|>",
        tokens_a_second=40,
        positions_a_second=90,
        languages=OMNILINGUAL,
    ),
    "Qwen2AudioForConditionalGeneration": Asking(
        text="<|audio_bos|><|AUDIO|><|audio_eos|>Detect the language and recognize the speech:"
    ),
    "Qwen2_5OmniForConditionalGeneration": _OMNI,
    "Qwen2_5OmniModel": _OMNI,
    "Qwen3ASRForConditionalGeneration": Asking(
        least_seconds=0.5,
        takes_prompt=True,
        begins=f"language {LANGUAGE}<asr_text>",
        marker="<asr_text>",
        languages=_QWEN3_ASR,
    ),
    "Qwen3OmniMoeForConditionalGeneration": _OMNI,
    "VibeVoiceAsrForConditionalGeneration": Asking(
        seconds=3000,
        text=(
            "<|im_start|>system\nYou are a helpful assistant that transcribes audio input into text output in JSON "
            "format.<|im_end|>\n<|im_start|>user\n<|object_ref_start|><|box_start|><|object_ref_end|>\nThis is a "
            f"{SECONDS} seconds audio, please transcribe it with these keys: Start time, End time, Speaker ID, Content"
            "<|im_end|>\n<|im_start|>assistant\n"
        ),
        diarizes="json",
        tokens_a_second=50,
    ),
    "VoxtralForConditionalGeneration": Asking(
        seconds=600,
        text=f"<s>[INST][BEGIN_AUDIO][AUDIO][/INST]{LANGUAGE}[TRANSCRIBE]",
        named=f"lang:{LANGUAGE}",
        languages=_VOXTRAL,
    ),
}
"""By the name of the architecture."""
