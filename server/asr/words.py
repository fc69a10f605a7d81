"""Times of each word of a window, from the times of its tokens.

The corrections are Whisper's: cross-attention finds the beginnings of words well, but extends words at pauses through
them.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import Final

import msgspec

from stentor.protocols.ipc.audio import Alignment, AlignmentOutput, PromptProbe

from .decoding_result import WindowTask
from .segments import FRAMES_A_SECOND, SENTENCE_ENDS, Part, Word
from .splitting import APPENDED, PREPENDED, SpelledWord, split_words
from .vocabulary import Vocabulary
from .window_decoder import DecodingOptions

_LONGEST_MEDIAN: Final = 0.7
_FRAMES_A_POSITION: Final = 2
"""Frames of one position of the encoder."""


class TimedWord(msgspec.Struct):
    """A word before it is assigned to a segment; times in seconds from the window's beginning. One without tokens is
    part of another."""

    text: str
    tokens: list[int]
    start: float
    end: float
    probability: float


class Pace(msgspec.Struct, frozen=True):
    """How long words last in this window, in seconds."""

    usual: float
    most: float


async def time_words(
    task: WindowTask, tokens: Sequence[int], parts: Sequence[Part], seek: int, frames: int, last_end: float
) -> None:
    """Gives every part its words, and moves its bounds to theirs.

    ``tokens`` are those of the window of ``frames`` at ``seek``; ``last_end`` is where speech ended before it, in
    seconds of the whole audio. Raises as :meth:`.window_decoder.WindowDecoder.decode`.
    """
    vocabulary = task.model.vocabulary
    assert isinstance(vocabulary, Vocabulary), "a model without times has none of words"
    spoken = [[token for token in tokens[part.begin : part.end] if vocabulary.is_text(token)] for part in parts]
    text = [token for each in spoken for token in each]
    if not text:
        for part in parts:
            part.words = []
        return
    prompt = vocabulary.beginning(task.language, task.options.task, timestamps=False)
    start = len(prompt)
    probe = PromptProbe(align=Alignment(start, -(-frames // _FRAMES_A_POSITION)))
    answer = await task.decoder.decode(task.window, prompt + text, DecodingOptions(vocabulary.eot, max_tokens=1), probe)
    words = timed_words(split_words(vocabulary, text, task.language), answer.alignment)
    pace = pace_of(words)
    shorten_at_sentences(words, pace)
    merge_punctuation(words)
    give_to_parts(words, parts, [len(each) for each in spoken], pace, seek / FRAMES_A_SECOND, last_end)


def timed_words(words: Sequence[SpelledWord], alignment: AlignmentOutput) -> list[TimedWord]:
    """Each word from the time of its first token to that of the next word's."""
    places = [0, *accumulate(len(word.tokens) for word in words)]
    times, probabilities = alignment.times, alignment.probabilities
    if len(times) <= places[-1] or len(probabilities) < places[-1]:
        return []  # a model without alignment heads has nothing to say
    return [
        TimedWord(
            word.text,
            word.tokens,
            times[begin],
            times[end],
            sum(probabilities[begin:end]) / (end - begin),
        )
        for word, begin, end in zip(words, places[:-1], places[1:], strict=True)
        if end > begin
    ]


def pace_of(words: Sequence[TimedWord]) -> Pace:
    lasting = [word.end - word.start for word in words if word.end > word.start]
    usual = min(_LONGEST_MEDIAN, median(lasting)) if lasting else 0.0
    return Pace(usual, usual * 2)


def shorten_at_sentences(words: Sequence[TimedWord], pace: Pace) -> None:
    """No word beside the end of a sentence lasts longer than the most."""
    if not pace.most:
        return
    for before, word in pairwise(words):
        if word.end - word.start <= pace.most:
            continue
        if word.text in SENTENCE_ENDS:
            word.end = word.start + pace.most
        elif before.text in SENTENCE_ENDS:
            word.start = word.end - pace.most


def merge_punctuation(words: Sequence[TimedWord]) -> None:
    """Joins punctuation to its words; joined entries have neither text nor tokens left."""
    following = len(words) - 1
    for place in range(len(words) - 2, -1, -1):
        word, next_word = words[place], words[following]
        if word.text.startswith(" ") and word.text.strip() in PREPENDED:
            next_word.text = word.text + next_word.text
            next_word.tokens = word.tokens + next_word.tokens
            word.text, word.tokens = "", []
        else:
            following = place
    previous = 0
    for place in range(1, len(words)):
        before, word = words[previous], words[place]
        if not before.text.endswith(" ") and word.text in APPENDED:
            before.text += word.text
            before.tokens = before.tokens + word.tokens
            word.text, word.tokens = "", []
        else:
            previous = place


def give_to_parts(
    words: Sequence[TimedWord], parts: Sequence[Part], counts: Sequence[int], pace: Pace, offset: float, last_end: float
) -> None:
    """Shares the words out by the number of tokens of each part; ``offset`` is the window's beginning."""
    place = 0
    for part, count in zip(parts, counts, strict=True):
        taken, own = 0, []
        while place < len(words) and taken < count:
            word = words[place]
            if word.text:
                start, end = round(offset + word.start, 2), round(offset + word.end, 2)
                own.append(Word(word.text, start, end, word.probability))
            taken += len(word.tokens)
            place += 1
        if own:
            _shorten_after_pause(own, pace, last_end)
            _agree(part, own, pace)
            last_end = part.stop
        part.words = own


def _shorten_after_pause(words: list[Word], pace: Pace, last_end: float) -> None:
    first, second = words[0], words[1] if len(words) > 1 else None
    too_long = first.end - first.start > pace.most or (second is not None and second.end - first.start > pace.most * 2)
    if first.end - last_end <= pace.usual * 4 or not too_long:
        return
    if second is not None and second.end - second.start > pace.most:
        first.end = second.start = max(second.end / 2, second.end - pace.most)
    first.start = max(0.0, first.end - pace.most)


def _agree(part: Part, words: list[Word], pace: Pace) -> None:
    """Timestamps and attention each know better where the other is far off."""
    first, last = words[0], words[-1]
    if part.start < first.end and part.start - 0.5 > first.start:
        first.start = max(0.0, min(first.end - pace.usual, part.start))
    else:
        part.start = first.start
    if part.stop > last.start and part.stop + 0.5 < last.end:
        last.end = max(last.start + pace.usual, part.stop)
    else:
        part.stop = last.end
