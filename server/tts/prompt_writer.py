"""Writes prompts for language models that speak: a family's words and texts as tokens of one vocabulary."""

from typing import Final, NamedTuple

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.tts.client import SpeechClient
from stentor.engine.tts.codecs import Codec

from ..text.pool import TokenizerPool
from ..text.tokenizers.tokenizer import Tokenizer
from .families import SpeechFamily


class CodeWords(NamedTuple):
    """The tokens of a family's words in one vocabulary."""

    first: int
    """Of the code 0; the others follow."""
    end: int
    frame_codes: int
    codebook: int

    @property
    def grammar(self) -> str:
        """The grammar of the output: whole frames, in which each place has its own set of codes, then the end."""
        places = [self.first + place * self.codebook for place in range(self.frame_codes)]
        ranges = " ".join(f"<[{first}-{first + self.codebook - 1}]>" for first in places)
        return f"start: frame*\nframe: {ranges}\n"

    def code(self, token: int, place: int) -> int:
        """The code of a token at a place in its sentence."""
        return token - self.token(0, place)

    def token(self, code: int, place: int) -> int:
        """The opposite of :meth:`code`."""
        return self.first + place % self.frame_codes * self.codebook + code


def code_words(tokenizer: Tokenizer, family: SpeechFamily, codec: Codec) -> CodeWords:
    """Raises :class:`CheckpointError` where the vocabulary has no word for some code."""
    count = codec.frame_codes * codec.codebook
    names = [family.code_word.format(family.first_number + number) for number in (0, count - 1)]
    known = tokenizer.backend.token_to_id
    first, last, end = known(names[0]), known(names[1]), known(family.end)
    if first is None or last is None or end is None or last - first != count - 1:
        raise CheckpointError(
            f"the speech model ({family.name}) and its codec do not fit: a frame of the codec needs {count} words, and "
            f"the tokenizer has no row of them from {names[0]} to {names[1]}; name another --speech-codec"
        )
    return CodeWords(first, end, codec.frame_codes, codec.codebook)


class Writer:
    """A :class:`.families.PromptWriter`."""

    def __init__(self, words: CodeWords, pool: TokenizerPool, process: SpeechClient, language: str) -> None:
        """``language``: of phonemes; "" for a model that reads letters."""
        self._words: Final = words
        self._pool: Final = pool
        self._process: Final = process
        self._language: Final = language

    def word(self, text: str) -> int:
        found = self._pool.tokenizer.backend.token_to_id(text)
        assert found is not None, f"checked when the model was opened: {text}"
        return found

    async def encode(self, text: str, *, whole: bool = False) -> list[int]:
        return await self._pool.encode(text, whole)

    async def conversation(self, question: str, answer: str) -> list[int]:
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return await self._pool.render_chat(turns, continue_final_message=True)

    async def spoken(self, text: str) -> str:
        return await self._process.phonemes(text, self._language) if self._language else text

    def codes(self, codes: list[int]) -> list[int]:
        return [self._words.token(code, place) for place, code in enumerate(codes)]
