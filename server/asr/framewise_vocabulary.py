"""The tokens of a transcription model that decodes frame by frame, and its transcripts as words and sentences.

Such a model gives each token its positions in the audio, so words have times without another pass.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.speech import framewise as framewise_config
from stentor.protocols.ipc.audio import SAMPLE_RATE
from stentor.protocols.ipc.inputs import StreamShape
from stentor.protocols.ipc.steps import TokenLogprobs

from ..text.tokenizers.loading import load_tokenizer
from ..text.tokenizers.tokenizer import Tokenizer
from .language_prompts import LanguagePrompts, language_prompts_of
from .languages import code_of
from .letters import SPACE, has_letters, letters_of
from .segments import SENTENCE_ENDS, Part, Word
from .splitting import split_words
from .untimed_vocabulary import UntimedVocabulary, named_in
from .vocabulary import settings_of
from .window_decoder import EngineOutput
from .words import TimedWord, merge_punctuation

_FRAMEWISE: Final = framewise_config
_READERS: Final[Mapping[str, Callable[..., framewise_config.FramewiseConfig]]] = {
    name: read
    for names, read in (
        ((_FRAMEWISE.CTC, _FRAMEWISE.CTC_TYPE), _FRAMEWISE.parakeet_ctc_config_from_hf),
        ((_FRAMEWISE.RNNT, _FRAMEWISE.RNNT_TYPE), _FRAMEWISE.parakeet_rnnt_config_from_hf),
        ((_FRAMEWISE.TDT, _FRAMEWISE.TDT_TYPE), _FRAMEWISE.parakeet_tdt_config_from_hf),
        ((_FRAMEWISE.NEMOTRON, _FRAMEWISE.NEMOTRON_TYPE), _FRAMEWISE.nemotron_asr_config_from_hf),
        ((_FRAMEWISE.NEMOTRON_3_5, _FRAMEWISE.NEMOTRON_3_5_TYPE), _FRAMEWISE.nemotron_3_5_asr_config_from_hf),
    )
    for name in names
} | {name: partial(_FRAMEWISE.modules_ctc_config_from_hf, name) for name in _FRAMEWISE.MODULES}
"""By what a config.json names."""
_PAUSE: Final = 0.6
"""Seconds between two words that end a sentence, where the model writes no marks for that."""


class FramewiseVocabulary(UntimedVocabulary):
    """See :class:`.vocabulary.Vocabulary`. Prompts say nothing but the language to some, and nothing is sampled."""

    has_times = True
    framewise = True
    default_language = "unknown"

    def __init__(
        self,
        tokenizer: Tokenizer,
        blank: int,
        prompts: LanguagePrompts | None = None,
        shape: StreamShape | None = None,
        positions_a_second: float = 12.5,
        *,
        delimiter: int | None = None,
        ids: Mapping[int, Mapping[int, int]] | None = None,
        marks_ends: bool = True,
    ) -> None:
        """``shape``: how chunks of streamed audio follow the samples; None: the model takes whole windows alone.

        ``ids``: by the number of a language, this vocabulary's tokens by those of the language's own, where models have
        one for each.
        ``delimiter``: the token that stands between words, of models whose tokens are letters; ``marks_ends``: whether
        transcripts have full stops.

        Raises :class:`CheckpointError` if the tokenizer lacks the blank.
        """
        self.shape: Final = shape
        languages = {} if prompts is None else prompts.languages
        super().__init__(tokenizer, (0,), blank, positions_a_second, languages)
        self.delimiter = delimiter
        self._ids = dict(ids or {})
        self.marks_ends: Final = marks_ends
        self._prompts = prompts
        self._named: dict[int, str] = {}
        """Codes of languages, by the token that names one in a transcript (``<de-DE>``)."""
        for locale in () if prompts is None else prompts.by_locale:
            if (token := tokenizer.backend.token_to_id(f"<{locale}>")) is not None:
                self._named[token] = code_of(locale) or locale.partition("-")[0]
        self._special |= self._named.keys()

    def knows(self, language: str) -> str | None:
        """A locale where the model tells regions apart."""
        if self._prompts is None:
            return super().knows(language)
        return self._prompts.locale_of(language) or super().knows(language)

    def beginning(self, language: str | None, task: str, *, timestamps: bool, written: str = "en") -> list[int]:
        if self._prompts is None:
            return super().beginning(language, task, timestamps=timestamps)
        return [self._prompts.number_of(language)]

    def told(self, tokens: Sequence[int]) -> str | None:
        return next((self._named[token] for token in reversed(tokens) if token in self._named), None)

    def behind(self, given: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of ``tokens``, a later transcript of the same audio, have the number of words of ``given``."""
        begins = [place for place, token in enumerate(tokens) if place and self._begins_word(token)]
        words = sum(not place or self._begins_word(token) for place, token in enumerate(given))
        if not words:
            return 0
        return begins[words - 1] if words <= len(begins) else len(tokens)

    def settle(self, answer: EngineOutput, number: int) -> None:
        """Have an answer to a prompt of ``number`` name this vocabulary's tokens, and each word begin with a space."""
        if (ids := self._ids.get(number)) is not None:
            rows = zip(answer.tokens, answer.logprobs, answer.spans, strict=True)
            known = [(ids[token], score, span) for token, score, span in rows if token in ids]
            answer.tokens, answer.spans = [token for token, _, _ in known], [span for _, _, span in known]
            answer.logprobs = [msgspec.structs.replace(score, token=token) for token, score, _ in known]
        if self.delimiter is not None:
            _begin_words(answer, self.delimiter)

    def _begins_word(self, token: int) -> bool:
        return self.is_text(token) and self.tokenizer.bytes_of(token).startswith(b" ")


def _begin_words(answer: EngineOutput, delimiter: int) -> None:
    """Has every word begin with one ``delimiter``, as tokens of other models do, and none follow the last."""
    tokens, kept = answer.tokens, list[int]()
    for place, token in enumerate(tokens):
        if token != delimiter or (kept and tokens[place - 1] != delimiter):
            kept.append(place)
    while kept and tokens[kept[-1]] == delimiter:
        kept.pop()
    if not kept:
        answer.tokens, answer.logprobs, answer.spans = [], [], []
        return
    begin = answer.spans[kept[0]][0]
    answer.tokens = [delimiter, *(tokens[place] for place in kept)]
    answer.logprobs = [TokenLogprobs(delimiter, 0.0, 1, []), *(answer.logprobs[place] for place in kept)]
    answer.spans = [(begin, begin), *(answer.spans[place] for place in kept)]


def sentences_of(
    vocabulary: FramewiseVocabulary, answer: EngineOutput, language: str | None, offset: float, seconds: float
) -> list[Part]:
    """The sentences of a window's transcript, with their words.

    ``offset``: where the window begins in the audio, in seconds; ``seconds``: its length.
    """
    parts: list[Part] = []
    words: list[Word] = []
    begin = end = 0
    for word in _words_of(vocabulary, answer, language, seconds):
        end += len(word.tokens)
        if not word.text:
            continue
        if words and not vocabulary.marks_ends and offset + word.start - words[-1].end >= _PAUSE:
            parts.append(Part(begin, end - len(word.tokens), words[0].start, words[-1].end, words))
            begin, words = end - len(word.tokens), []
        words.append(Word(word.text, offset + word.start, offset + word.end, word.probability))
        if word.text.rstrip().endswith(tuple(SENTENCE_ENDS)):
            parts.append(Part(begin, end, words[0].start, words[-1].end, words))
            begin, words = end, []
    if words:
        parts.append(Part(begin, end, words[0].start, words[-1].end, words))
    if parts:
        parts[-1].end = end  # a language is named behind the last sentence
    return parts


def _words_of(
    vocabulary: FramewiseVocabulary, answer: EngineOutput, language: str | None, seconds: float
) -> list[TimedWord]:
    """Words with their punctuation, which adds nothing to how long they last."""
    language = (vocabulary.told(answer.tokens) or language or "").partition("-")[0]
    rate, spelled = vocabulary.positions_a_second, split_words(vocabulary, answer.tokens, language)
    ends = accumulate(len(word.tokens) for word in spelled)
    words = []
    for word, end in zip(spelled, ends, strict=True):
        spaced = len(word.tokens) > 1 and word.tokens[0] == vocabulary.delimiter
        places = slice(end - len(word.tokens) + spaced, end)
        spans, logprobs = answer.spans[places], answer.logprobs[places]
        start = min(spans[0][0] / rate, seconds)
        last = max(spans[-1][1], spans[0][0] + 1) / rate
        likely = sum(math.exp(each.logprob) for each in logprobs) / len(logprobs)
        words.append(TimedWord(word.text, word.tokens, start, min(last, seconds), likely))
    merge_punctuation(words)
    return words


def is_framewise(folder: Path) -> bool:
    """Whether the model in ``folder`` decodes frame by frame."""
    return named_in(settings_of(folder)) in _READERS


def framewise_vocabulary_of(folder: Path) -> FramewiseVocabulary:
    """For a model for which :func:`is_framewise` is true. Raises :class:`CheckpointError` and ``TokenizerError``."""
    settings = read_json(folder / "config.json")
    try:
        config = _READERS[named_in(settings)](settings, {})
    except ConfigError as error:
        raise CheckpointError(f"Cannot load {folder}: {error}.") from error
    prompts = None if config.languages is None else language_prompts_of(folder, config.languages)
    rate = SAMPLE_RATE / config.samples_a_position
    if not has_letters(folder):
        tokenizer = load_tokenizer(folder)
        space = _space_of(tokenizer)
        # such a vocabulary has the full stops of all scripts, and the transcripts of OmniASR none
        return FramewiseVocabulary(
            tokenizer, config.blank, prompts, config.stream, rate, delimiter=space, marks_ends=space is None
        )
    letters = letters_of(folder)
    tokenizer = letters.tokenizer
    if tokenizer.pad_token_id != config.blank:
        raise CheckpointError(
            f"Cannot load {folder}: pad_token_id is {config.blank} in config.json and {tokenizer.pad_token_id} in "
            "vocab.json, expected the same: it is the blank. Correct config.json."
        )
    id_of = tokenizer.backend.token_to_id
    ends = any(id_of(mark) is not None for mark in SENTENCE_ENDS)
    return FramewiseVocabulary(
        tokenizer,
        config.blank,
        letters.languages,
        config.stream,
        rate,
        delimiter=id_of(SPACE),
        ids=letters.ids,
        marks_ends=ends,
    )


def _space_of(tokenizer: Tokenizer) -> int | None:
    """The token between words of a ``tokenizer`` whose tokens are letters; None where words begin with a space."""
    spaced = [piece for piece in tokenizer.backend.get_vocab(with_added_tokens=False) if piece.startswith(" ")]
    return tokenizer.backend.token_to_id(" ") if spaced == [" "] else None
