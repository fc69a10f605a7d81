"""The special tokens of a Whisper model, and tokens that a transcript never contains.

Tokens are found by name in the tokenizer, which covers English-only and multilingual models, whose ids differ by one,
and those with more languages. The suppressed tokens are the model's own if it has lists (``generation_config.json`` of
Hugging Face, ``config.json`` of CTranslate2), else those of Whisper's code.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json
from stentor.protocols.ipc.audio import TokenRules

from ..text.tokenizers.tokenizer import Tokenizer
from .languages import NAMES, code_of
from .options import MAX_TOKENS, TEMPERATURE_FALLBACK

INITIAL_STEPS: Final = 50
"""A window's first timestamp is at most that many steps after its beginning."""

_ENGLISH_EOT: Final = 50256
"""Of GPT-2's vocabulary, which English-only models use; that of multilingual ones is larger."""
_SYMBOLS: Final = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
"""Begin speaker tags and annotations of other sounds."""
_MUSIC: Final = "♩♪♫♬♭♮♯"
"""Also a first token that these share with similar symbols."""


class Vocabulary:
    """Token ids by meaning. Raises :class:`CheckpointError` if the tokenizer lacks one.

    Other models have an :class:`.untimed_vocabulary.UntimedVocabulary`, with the same members where both are used.
    """

    has_times: Final = True
    """Whether segments and words have times."""
    marks_times: Final = True
    """Whether tokens of a transcript are timestamps, and words can be aligned."""
    framewise: Final = False
    """Whether the engine returns whole transcripts, with the positions of each token, in place of sampled tokens."""
    delimiter: Final = None
    """The token between words, where tokens are letters and none begins a word."""
    default_language: Final = "en"
    """Reported where the request names no language and none is detected."""
    takes_context: Final = True
    """Whether the prompt has text of before."""
    temperatures: Final = TEMPERATURE_FALLBACK
    """Tried one after the other."""
    positions_a_second: Final = 50.0
    """Encoder positions of a second of audio, counted as input tokens."""

    def __init__(self, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
        """``settings`` are from the model's files; see :func:`settings_of`."""
        self.tokenizer: Final = tokenizer
        self.eot: Final = self._id("<|endoftext|>")
        self.sot: Final = self._id("<|startoftranscript|>")
        self.sot_prev: Final = self._id("<|startofprev|>")
        self.transcribe: Final = self._id("<|transcribe|>")
        self.translate: Final = self._id("<|translate|>")
        self.no_speech: Final = self._id("<|nospeech|>", "<|nocaptions|>")
        self.no_timestamps: Final = self._id("<|notimestamps|>")
        self.timestamp_begin: Final = self.no_timestamps + 1
        """Id of <|0.00|>; converted tokenizers often have no names for it and those after it."""
        said = settings.get("is_multilingual")
        self.multilingual: Final[bool] = said if isinstance(said, bool) else self.eot != _ENGLISH_EOT
        self.languages: Final[dict[str, int]] = self._languages() if self.multilingual else {}
        """Tokens by code; none where the model knows only English."""
        special = {self.transcribe, self.translate, self.sot, self.sot_prev, self.no_speech}
        start_of_lm = tokenizer.backend.token_to_id("<|startoflm|>")
        if start_of_lm is not None:
            special.add(start_of_lm)
        listed = _ids(settings.get("suppress_tokens", settings.get("suppress_ids")))
        self._suppressed: Final = special | (self._not_spoken if listed is None else listed)
        first = _ids(settings.get("begin_suppress_tokens", settings.get("suppress_ids_begin")))
        self._suppressed_first: Final = {*tokenizer.encode(" ", False), self.eot} if first is None else first

    def _id(self, *names: str) -> int:
        for name in names:
            found = self.tokenizer.backend.token_to_id(name)
            if found is not None:
                return int(found)
        raise CheckpointError(
            f"The tokenizer has no token {names[0]}: it is not that of a Whisper model; name a folder with "
            "the tokenizer.json of one."
        )

    def _languages(self) -> dict[str, int]:
        found = {code: self.tokenizer.backend.token_to_id(f"<|{code}|>") for code in NAMES}
        return {code: id for code, id in found.items() if id is not None}

    @property
    def _not_spoken(self) -> set[int]:
        encode = self.tokenizer.encode
        # a hyphen and an apostrophe occur within words, but begin none
        found = {encode(" -", False)[0], encode(" '", False)[0]}
        for symbol in (*_SYMBOLS, *_MUSIC):
            for tokens in (encode(symbol, False), encode(" " + symbol, False)):
                if len(tokens) == 1 or symbol in _MUSIC:
                    found.add(tokens[0])
        return found

    @cached_property
    def timed(self) -> TokenRules:
        """The rules of a transcript with timestamps."""
        suppressed = sorted(self._suppressed | {self.no_timestamps})
        return TokenRules(suppressed, sorted(self._suppressed_first), self.timestamp_begin, INITIAL_STEPS, self.eot)

    @cached_property
    def untimed(self) -> TokenRules:
        """The rules of one without."""
        return TokenRules(sorted(self._suppressed), sorted(self._suppressed_first), -1, -1, self.eot)

    @cached_property
    def going_on(self) -> TokenRules:
        """The rules of a continued transcript: it may end at once."""
        return TokenRules(sorted(self._suppressed), [], -1, -1, self.eot)

    @property
    def detects(self) -> bool:
        """Whether the language can be detected by the token after the start of a transcript."""
        return self.multilingual

    @property
    def translates(self) -> bool:
        """Whether it translates into English."""
        return self.multilingual

    def knows(self, language: str) -> str | None:
        """The code of a language that it transcribes, by a code or name; None for others."""
        code = code_of(language)
        return code if code in (self.languages if self.multilingual else ("en",)) else None

    def most_tokens(self, seconds: float) -> int:
        """Most tokens of a transcript of ``seconds`` of audio."""
        return MAX_TOKENS

    def context(self, previous: Sequence[int], most: int) -> list[int]:
        """Beginning of a prompt: at most ``most`` tokens of the text before."""
        return [self.sot_prev, *previous[-most:]] if previous and most > 0 else []

    def beginning(self, language: str | None, task: str, *, timestamps: bool, written: str = "en") -> list[int]:
        """Beginning of a transcript: its start, and for a multilingual model language and task. Translations are
        ``written`` in English alone."""
        found = [self.sot]
        if language is not None and self.multilingual:
            found += [self.languages[language], self.translate if task == "translate" else self.transcribe]
        return found if timestamps else [*found, self.no_timestamps]

    def rules(self, *, timestamps: bool, continued: bool) -> TokenRules | None:
        """The rules of a transcript; ``continued``: one that has begun."""
        return self.timed if timestamps else self.going_on if continued else self.untimed

    def is_text(self, token: int) -> bool:
        return token < self.eot

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, False)

    def decode(self, tokens: list[int]) -> str:
        """The text of a transcript, without timestamps and special tokens."""
        return self.tokenizer.decode([token for token in tokens if self.is_text(token)])


def settings_of(folder: Path) -> dict[str, Any]:
    """Token settings of a model's folder, under the names of its file.

    Raises :class:`stentor.engine.loading.errors.CheckpointError` for an unreadable file.
    """
    found: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            found.update(read_json(folder / name))
    return found


def _ids(listed: object) -> set[int] | None:
    """None without a list; an empty list is a list."""
    if not isinstance(listed, list) or not all(isinstance(id, int) for id in listed) or -1 in listed:
        return None
    return {id for id in listed if id >= 0}
