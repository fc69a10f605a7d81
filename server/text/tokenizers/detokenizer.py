"""Incremental detokenisation: tokens in, text out once it is final.

For every detokenizer and every way to cut the tokens into pushes, the joined pieces equal ``tokenizer.decode`` of the
whole list; with a prompt tail, they equal what the list adds to the text after that tail. No piece splits a character,
and no piece contains a U+FFFD that the whole text does not contain.
"""

import codecs
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from .pieces import byte_token_value
from .tokenizer import Tokenizer, TokenTable

PROMPT_TAIL: Final = 8
"""Prompt tokens that suffice to decide how a continuation begins."""


class Detokenizer(Protocol):
    """The text of one choice."""

    def push(self, tokens: Sequence[int]) -> str:
        """Takes the next tokens and returns the text that became final."""

    def finish(self) -> str:
        """The rest, when no more tokens come. The detokenizer is spent afterwards."""


def _byte_piece(tokenizer: Tokenizer, skip: frozenset[int], id: int) -> str | bytes:
    """A token's text if it consists of whole characters, else its bytes."""
    data = b"" if id in skip else tokenizer.token_bytes(id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _sentence_piece(tokenizer: Tokenizer, skip: frozenset[int], id: int) -> str | int | None:
    """A token's text, its byte value, or None if it adds nothing."""
    token = None if id in skip else tokenizer.backend.id_to_token(id)
    if token is None:
        return None
    value = byte_token_value(token)
    return token.replace("▁", " ") if value is None else value


class ByteLevelDetokenizer:
    """Byte-level BPE: a table look-up a token, and an incremental UTF-8 decoder between characters."""

    __slots__ = ("_partial", "_pieces")

    def __init__(self, pieces: TokenTable[str | bytes]) -> None:
        self._pieces = pieces
        self._partial: codecs.IncrementalDecoder | None = None

    def push(self, tokens: Sequence[int]) -> str:
        pieces = self._pieces
        if self._partial is None:
            text = ""
            for place, token in enumerate(tokens):
                piece = pieces[token]
                if piece.__class__ is str:
                    text += piece
                else:
                    return text + self._push_bytes(tokens[place:])
            return text
        return self._push_bytes(tokens)

    def _push_bytes(self, tokens: Sequence[int]) -> str:
        pieces = (self._pieces[token] for token in tokens)
        data = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
        partial = self._partial
        if partial is None:
            partial = self._partial = codecs.getincrementaldecoder("utf-8")("replace")
        text = partial.decode(data)
        if not partial.getstate()[0]:
            self._partial = None
        return text

    def finish(self) -> str:
        partial, self._partial = self._partial, None
        return "" if partial is None else partial.decode(b"", final=True)


class SentencePieceDetokenizer:
    """SentencePiece with byte fallback.

    A run of byte tokens comes out when it ends: only then is it known whether it is valid UTF-8,
    and the decoder turns every byte of a run that is not into a U+FFFD.
    """

    __slots__ = ("_bytes", "_pieces", "_strip")

    def __init__(self, pieces: TokenTable[str | int | None], *, strip: bool) -> None:
        self._pieces = pieces
        self._bytes = bytearray()
        self._strip = strip

    def push(self, tokens: Sequence[int]) -> str:
        text = ""
        for token in tokens:
            piece = self._pieces[token]
            if piece is None:
                continue
            if isinstance(piece, int):
                self._bytes.append(piece)
                continue
            if self._bytes:
                text += self._end_run()
            text += piece
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def _end_run(self) -> str:
        run, self._bytes = self._bytes, bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def finish(self) -> str:
        text = self._end_run()
        return text.removeprefix(" ") if self._strip else text


class WindowDetokenizer:
    """Detokenizes with any decoder, which decodes a window of the newest tokens anew to find the text that they add."""

    def __init__(self, tokenizer: Tokenizer, skip: frozenset[int], *, tail: Sequence[int], split_added: bool) -> None:
        self._backend = tokenizer.backend
        self._skip = skip
        self._added = tokenizer.added_ids if split_added else frozenset[int]()
        self._byte_fallback = tokenizer.shape.byte_fallback
        self._window = self._visible(tail)
        self._before = self._decode()
        if self._before.endswith("\ufffd"):
            self._window, self._before = [], ""
        self._fresh = len(self._window)
        """Index of the first token without output."""

    def _visible(self, tokens: Sequence[int]) -> list[int]:
        # skipped tokens never reach the decoder, and a window of nothing else would look like a start
        known = self._backend.id_to_token
        return [token for token in tokens if token not in self._skip and token >= 0 and known(token) is not None]

    def _decode(self) -> str:
        return self._backend.decode(self._window, skip_special_tokens=False)

    def push(self, tokens: Sequence[int]) -> str:
        text = ""
        for token in self._visible(tokens):
            if token in self._added and self._window and self._window[-1] in self._added:
                text += self.finish()
                self._window, self._before, self._fresh = [], "", 0
            self._window.append(token)
        return text + self._advance()

    def _advance(self) -> str:
        if self._fresh == len(self._window) or (self._byte_fallback and self._ends_in_byte()):
            return ""
        whole = self._decode()
        if len(whole) <= len(self._before) or whole.endswith("\ufffd"):
            return ""
        text = whole[len(self._before) :]
        self._window = self._window[self._fresh :]
        self._fresh = len(self._window)
        self._before = self._decode()
        return text

    def _ends_in_byte(self) -> bool:
        token = self._backend.id_to_token(self._window[-1])
        return token is not None and byte_token_value(token) is not None

    def finish(self) -> str:
        if self._fresh == len(self._window):
            return ""
        text = self._decode()[len(self._before) :]
        self._fresh = len(self._window)
        return text


class Detokenizers:
    """Makes the detokenizers of one model and owns the tables that they share."""

    def __init__(self, tokenizer: Tokenizer, visible: frozenset[str] = frozenset()) -> None:
        self._tokenizer = tokenizer
        skips = {True: tokenizer.special_ids - self.ids(visible), False: frozenset[int]()}
        self._skips = skips
        size = tokenizer.vocab_size
        self._bytes = {skip: TokenTable(partial(_byte_piece, tokenizer, ids), size) for skip, ids in skips.items()}
        self._sentences = {
            skip: TokenTable(partial(_sentence_piece, tokenizer, ids), size) for skip, ids in skips.items()
        }
        self._seen: dict[frozenset[str], Detokenizers] = {}

    def new(
        self,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        prompt_tail: Sequence[int] = (),
        visible: frozenset[str] = frozenset(),
    ) -> Detokenizer:
        """A detokenizer for one choice.

        ``visible`` are special tokens that become text even where others are skipped; each set has its own tables, so
        only a few sets may be used. ``prompt_tail`` is the end of the prompt (:data:`PROMPT_TAIL` tokens suffice):
        behind one, a SentencePiece text keeps its first space.
        """
        if visible and skip_special_tokens:
            return self._with(visible).new(
                spaces_between_special_tokens=spaces_between_special_tokens, prompt_tail=prompt_tail
            )
        shape = self._tokenizer.shape
        skip = self._skips[skip_special_tokens]
        match shape.kind:
            case "byte_level":
                return ByteLevelDetokenizer(self._bytes[skip_special_tokens])
            case "sentencepiece":
                pieces = self._sentences[skip_special_tokens]
                continues = any(pieces[token] is not None for token in prompt_tail)
                return SentencePieceDetokenizer(pieces, strip=shape.strips_first_space and not continues)
            case "other":
                split = not (skip_special_tokens or spaces_between_special_tokens)
                return WindowDetokenizer(self._tokenizer, skip, tail=prompt_tail, split_added=split)

    def ids(self, texts: frozenset[str]) -> frozenset[int]:
        """Ids of the texts that are one special token each."""
        found = (self._tokenizer.backend.token_to_id(text) for text in texts)
        return frozenset(id for id in found if id is not None) & self._tokenizer.special_ids

    def _with(self, visible: frozenset[str]) -> "Detokenizers":
        made = self._seen.get(visible)
        if made is None:
            made = self._seen[visible] = Detokenizers(self._tokenizer, visible)
        return made
