"""The tokens of a transcription model without timestamps: its prompt, its languages and the end of a transcript."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.speech import fast_conformer as fast_conformer_config
from stentor.engine.model_config.speech import moonshine as moonshine_config
from stentor.engine.model_config.speech import moonshine_streaming as moonshine_streaming_config
from stentor.engine.model_config.speech import seamless as seamless_config
from stentor.engine.model_config.speech import speech_to_text as speech_to_text_config
from stentor.protocols.ipc.audio import SAMPLE_RATE, TokenRules

from ..text.tokenizers.loading import load_tokenizer
from ..text.tokenizers.tokenizer import Tokenizer
from .languages import code_of
from .pieces import pieces_of
from .seamless import SEAMLESS
from .vocabulary import settings_of

PromptToken = int | Literal["source", "target"]
"""A token, or the place of a language token: of the spoken language, and of the written one."""


_TOKENS_A_SECOND: Final = 13.0
"""Most that Moonshine's makers expect, of languages in other scripts than Latin; a transcript with more repeats
itself."""
_SPARE_TOKENS: Final = 8


class UntimedVocabulary:
    """What :class:`.vocabulary.Vocabulary` is for Whisper."""

    no_speech: Final = None
    has_times: bool = False
    marks_times: Final = False
    framewise: bool = False
    delimiter: int | None = None
    default_language: str = "en"
    takes_context: Final = False
    detects: Final = False
    timestamp_begin: Final = 1 << 32
    """No token is one."""
    temperatures: Final = (0.0,)
    """The thresholds for others are Whisper's."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[PromptToken],
        eot: int,
        positions_a_second: float,
        languages: Mapping[str, int] | None = None,
    ) -> None:
        """``languages``: tokens by code; empty if the prompt names none. Raises :class:`CheckpointError` for a token
        that the tokenizer lacks."""
        self.tokenizer: Final = tokenizer
        self.eot: Final = eot
        self.positions_a_second: Final = positions_a_second
        self.languages: Final = dict(languages or {})
        self._prompt = tuple(prompt)
        self._special = tokenizer.special_ids | {eot}
        for token in (eot, *(each for each in prompt if isinstance(each, int))):
            if tokenizer.backend.id_to_token(token) is None:
                raise CheckpointError(f"The tokenizer has no token {token}, which config.json names.")

    @property
    def multilingual(self) -> bool:
        return bool(self.languages)

    @property
    def translates(self) -> bool:
        return "target" in self._prompt

    @property
    def asks_source(self) -> bool:
        """Whether a translation needs the language that is spoken."""
        return "source" in self._prompt

    def knows(self, language: str) -> str | None:
        code = code_of(language) or language.strip().lower()
        return code if code in self.languages or not self.languages else None

    def most_tokens(self, seconds: float) -> int:
        return _SPARE_TOKENS + math.ceil(_TOKENS_A_SECOND * seconds)

    def context(self, previous: Sequence[int], most: int) -> list[int]:
        return []

    def beginning(self, language: str | None, task: str, *, timestamps: bool, written: str = "en") -> list[int]:
        """``written``: the language of a translation."""
        spoken = self.languages.get(language or "en", -1)
        target = self.languages[written] if task == "translate" else spoken
        return [spoken if each == "source" else target if each == "target" else each for each in self._prompt]

    def behind(self, given: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of ``tokens``, sampled after ``given``, repeat its text."""
        return 0

    def told(self, tokens: Sequence[int]) -> str | None:
        """The code of the language that a transcript names by a token."""
        return None

    def rules(self, *, timestamps: bool, continued: bool) -> TokenRules | None:
        return None

    def is_text(self, token: int) -> bool:
        return token not in self._special

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, False)

    def decode(self, tokens: list[int]) -> str:
        """Begins with a space where a word does."""
        said = (self.tokenizer.bytes_of(token) for token in tokens if self.is_text(token))
        return b"".join(said).decode(errors="replace")


class _Family(msgspec.Struct, frozen=True):
    """What a model's files do not say."""

    samples: int
    """Of a position."""
    prompt: Sequence[str] = ()
    """Tokens by name, and the places of :data:`PromptToken`; empty: the decoder's first token."""
    languages: Sequence[str] = ()
    """Codes that the prompt may name."""
    table: str = ""
    """Field with the tokens of languages, the only ones behind the decoder's first token; "": there is none."""


_SOURCE, _TARGET = "source", "target"
_CANARY: Final = (
    *("<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", _SOURCE, _TARGET),
    *("<|pnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"),
)
_CANARY_LANGUAGES: Final = (
    *("bg", "hr", "cs", "da", "nl", "en", "et", "fi", "fr", "de", "el", "hu", "it", "lv", "lt", "mt", "pl", "pt"),
    *("ro", "sk", "sl", "es", "sv", "ru", "uk"),
)
_COHERE_LANGUAGES: Final = ("ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh")
_MOONSHINE, _STREAMING, _CONFORMER = moonshine_config, moonshine_streaming_config, fast_conformer_config
_SPEECH2TEXT: Final = speech_to_text_config
_SEAMLESS: Final = seamless_config
_SPEECH2TEXT_SAMPLES: Final = 640
"""Of the published models, whose two convolutions halve frames of 10 ms."""
_SEAMLESS_SAMPLES: Final = 2560
"""Of the published models, which join pairs of frames of 10 ms by eight."""
_CONFORMER_SAMPLES: Final = _CONFORMER.HOP * _CONFORMER.SUBSAMPLING
_FAMILIES: Final[Mapping[str, _Family]] = {
    name: family
    for names, family in (
        ((_MOONSHINE.ARCHITECTURE, _MOONSHINE.MODEL_TYPE), _Family(_MOONSHINE.SAMPLES_A_POSITION)),
        ((_SPEECH2TEXT.ARCHITECTURE, _SPEECH2TEXT.MODEL_TYPE), _Family(_SPEECH2TEXT_SAMPLES)),
        (_SEAMLESS.SPEECH_TO_TEXT, _Family(_SEAMLESS_SAMPLES, table="text_decoder_lang_to_code_id")),
        ((_STREAMING.ARCHITECTURE, _STREAMING.MODEL_TYPE), _Family(_STREAMING.SAMPLES_A_POSITION)),
        (
            (_CONFORMER.CANARY, _CONFORMER.CANARY_TYPE),
            _Family(
                _CONFORMER_SAMPLES,
                _CANARY,
                _CANARY_LANGUAGES,
            ),
        ),
        (
            (_CONFORMER.COHERE, _CONFORMER.COHERE_TYPE),
            _Family(
                _CONFORMER_SAMPLES,
                ("▁", *(_SOURCE if each == _TARGET else each for each in _CANARY)),
                _COHERE_LANGUAGES,
            ),
        ),
    )
    for name in names
}
"""By what a config.json names."""


def is_untimed(folder: Path) -> bool:
    """Whether the model in ``folder`` is an encoder-decoder without timestamps."""
    return named_in(settings_of(folder)) in _FAMILIES


def untimed_vocabulary_of(folder: Path) -> UntimedVocabulary:
    """For a model for which :func:`is_untimed` is true. Raises :class:`CheckpointError` and ``TokenizerError``."""
    settings = settings_of(folder)
    spelled = named_in(settings) in (_SPEECH2TEXT.ARCHITECTURE, _SPEECH2TEXT.MODEL_TYPE)
    tokenizer = pieces_of(folder) if spelled else load_tokenizer(folder)
    fields, family = Fields(settings), _FAMILIES[named_in(settings)]
    ends, rate = fields.token_ids("eos_token_id"), SAMPLE_RATE / family.samples
    if family.prompt:
        end = ends[0] if ends else _id_of(tokenizer, "<|endoftext|>")
        named = {code: tokenizer.backend.token_to_id(f"<|{code}|>") for code in family.languages}
        languages = {code: id for code, id in named.items() if id is not None}
        if "en" not in languages:
            raise CheckpointError(f"The tokenizer in {folder} has no token <|en|>, which names the language.")
        return UntimedVocabulary(
            tokenizer, [_prompted(tokenizer, each) for each in family.prompt], end, rate, languages
        )
    if family.table:
        end, start = ends[0] if ends else 3, fields.token_id("decoder_start_token_id")
        languages = _tabled(folder, settings, family.table)
        first: list[PromptToken] = [3 if start is None else start, "target"]
        return UntimedVocabulary(tokenizer, first, end, rate, languages)
    starts = (fields.token_id(name) for name in ("decoder_start_token_id", "bos_token_id"))
    start = next((token for token in starts if token is not None), 1)
    forced = fields.token_id("forced_bos_token_id")
    if forced is None and any(piece.startswith("<lang:") for piece in tokenizer.added_texts):
        raise CheckpointError(
            f"The model in {folder} writes several languages: choose one by the number of its token (<lang:…> in "
            "vocab.json) as forced_bos_token_id in generation_config.json."
        )
    prompt = (start,) if forced is None else (start, forced)
    return UntimedVocabulary(tokenizer, prompt, ends[0] if ends else 2, rate)


def _tabled(folder: Path, settings: Mapping[str, object], table: str) -> dict[str, int]:
    """The tokens of languages by the names that a table of the model's files gives them, and by their codes. Raises
    :class:`CheckpointError`."""
    match settings.get(table):
        case dict() as named if all(isinstance(each, int) and each >= 0 for each in named.values()):
            found = {str(name).lower(): int(token) for name, token in named.items()}
        case _:
            found = {}
    found |= {code: found[name] for code, name in SEAMLESS.items() if name in found}
    if "en" not in found:
        raise CheckpointError(f"generation_config.json in {folder} names no token of English in {table}.")
    return found


def _prompted(tokenizer: Tokenizer, name: str) -> PromptToken:
    match name:
        case "source":
            return "source"
        case "target":
            return "target"
    return _id_of(tokenizer, name)


def _id_of(tokenizer: Tokenizer, name: str) -> int:
    found = tokenizer.backend.token_to_id(name)
    if found is None:
        raise CheckpointError(
            f"The tokenizer has no token {name}: it is not that of this model. Fetch the model again."
        )
    return int(found)


def named_in(settings: Mapping[str, object]) -> str:
    """The architecture that a config.json names, or else the type; "" if there is none."""
    match settings:
        case {"architectures": [str(name)]} | {"model_type": str(name)}:
            return name
    return ""
