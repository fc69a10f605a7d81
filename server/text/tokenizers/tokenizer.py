"""One model's tokenizer: the ``tokenizers`` library's, with additions for serving."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeVar

from tokenizers import Tokenizer as Backend

from .pieces import DecoderShape, byte_level_bytes, byte_token_value, decoder_shape

_PIECE_CHARS: Final = 1 << 14

ChatTemplates = str | dict[str, str] | None


Value = TypeVar("Value")


class TokenTable(dict[int, Value]):
    """A lazily filled table of values by token id, for ids below ``size``."""

    def __init__(self, make: Callable[[int], Value], size: int) -> None:
        super().__init__()
        self._make = make
        self._size = size

    def __missing__(self, id: int) -> Value:
        value = self._make(id)
        if 0 <= id < self._size:  # ids of clients must not fill the table
            self[id] = value
        return value


class Marked(str):
    """A piece of a prompt in which texts of added tokens are these tokens, beside others in which they are words."""

    __slots__ = ()


class Tokenizer:
    """Text to token ids and back.

    Encoding and decoding may be called from any thread. They use the library's batch calls, which release the
    interpreter's lock: a long text then blocks no other work. ``special_tokens`` maps the names in chat templates
    (``bos_token``, ``eos_token``, …) to their text.
    """

    def __init__(
        self, backend: Backend, special_tokens: Mapping[str, str], chat_template: ChatTemplates = None
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend: Final = backend
        self.special_tokens: Final = dict(special_tokens)
        self.chat_template: Final = chat_template
        self.shape: Final[DecoderShape] = decoder_shape(backend)
        self.vocab_size: Final = backend.get_vocab_size(with_added_tokens=True)
        """Distinct tokens, added ones included. Ids may reach further where they have gaps."""
        added = backend.get_added_tokens_decoder()
        self.added_ids: Final = frozenset(added)
        self.special_ids: Final = frozenset(id for id, token in added.items() if token.special)
        self.special_texts: Final = tuple(token.content for token in added.values() if token.special)
        self.bos_token: Final = self.special_tokens.get("bos_token")
        self.eos_token: Final = self.special_tokens.get("eos_token")
        self.bos_token_id: Final = self._id_of(self.bos_token)
        self.eos_token_id: Final = self._id_of(self.eos_token)
        self.pad_token_id: Final = self._id_of(self.special_tokens.get("pad_token"))
        self.unk_token_id: Final = self._id_of(self.special_tokens.get("unk_token"))

        self._bytes: Final = TokenTable(self.token_bytes, self.vocab_size)
        self._names: Final = TokenTable(self.token_to_text, self.vocab_size)
        self.bytes_of: Final[Callable[[int], bytes]] = self._bytes.__getitem__
        """:meth:`token_bytes`, which is remembered: for tokens that come again and again."""
        self.name_of: Final[Callable[[int], str]] = self._names.__getitem__
        """:meth:`token_to_text`, likewise."""
        self._adds_bos = self.bos_token_id is not None and backend.encode("").ids[:1] == [self.bos_token_id]

    @property
    def template_source(self) -> str:
        """Source of all its chat templates together; empty without templates."""
        templates = self.chat_template
        return "\n".join(templates.values()) if isinstance(templates, dict) else templates or ""

    @property
    def added_texts(self) -> list[str]:
        """Texts of its added tokens, by id."""
        return [token.content for _, token in sorted(self.backend.get_added_tokens_decoder().items())]

    def fewest_tokens(self, text: str) -> int:
        """A lower bound, without encoding, of the tokens of ``text``; 0 where nothing is known."""
        return len(text) // self._longest_token if self._longest_token else 0

    @cached_property
    def _longest_token(self) -> int:
        """Bytes that one token covers at most, where tokens cover a text exactly; 0 where they may not.

        A normaliser may shorten a text, and an added token may take in any amount of white space.
        """
        greedy = any(token.lstrip or token.rstrip for token in self.backend.get_added_tokens_decoder().values())
        if self.shape.kind != "byte_level" or self.backend.normalizer is not None or greedy:
            return 0
        return max((len(self.token_bytes(id)) for id in self.backend.get_vocab().values()), default=0)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self.backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``.

        With ``add_special_tokens`` the model's own BOS and EOS are added as it requires, but never a second BOS before
        a text that has one.
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """:meth:`encode` of each text."""
        batch = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        if not add_special_tokens:
            return [encoding.ids for encoding in batch]
        return [self._single_bos(text, encoding.ids) for text, encoding in zip(texts, batch, strict=True)]

    def encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Token ids of pieces, each encoded on its own. Only those that are :class:`Marked` have added tokens."""
        marked = [isinstance(piece, Marked) for piece in pieces]
        found = {}
        for kind, backend in ((True, self.backend), (False, self._without_added)):
            own = [str(piece) for piece, is_marked in zip(pieces, marked, strict=True) if is_marked is kind]
            found[kind] = iter(backend.encode_batch_fast(own, add_special_tokens=False))
        return [id for kind in marked for id in next(found[kind]).ids]

    @cached_property
    def _without_added(self) -> Backend:
        """The same words, without added tokens; it shares the vocabulary's memory."""
        like, made = self.backend, Backend(self.backend.model)
        if like.normalizer is not None:
            made.normalizer = like.normalizer
        if like.pre_tokenizer is not None:
            made.pre_tokenizer = like.pre_tokenizer
        return made

    def offsets(
        self, text: str, ids: Sequence[int], add_special_tokens: bool = True, *, from_end: bool = False
    ) -> list[tuple[int, int]] | None:
        """The half-open range of characters in ``text`` that each of ``ids`` is from; that of a token which was added
        to the text is empty.

        ``ids`` are the first tokens of ``text``, or with ``from_end`` its last. None if they are not.
        """
        (encoding,) = self.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        every = encoding.ids
        added = len(every) - len(self._single_bos(text, every)) if add_special_tokens else 0
        first = len(every) - len(ids) if from_end else added
        if first < added or every[first : first + len(ids)] != list(ids):
            return None
        offsets: list[tuple[int, int]] = encoding.offsets[first : first + len(ids)]
        return offsets

    def count_in_pieces(self, text: str) -> int:
        """How many tokens ``text`` has, and one more at most for each place where it is cut: in little memory."""
        pieces = (text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS))
        return sum(len(self.encode(piece, False)) for piece in pieces)

    def _single_bos(self, text: str, ids: list[int]) -> list[int]:
        brings_own = self._adds_bos and text.startswith(self.bos_token or "")
        return ids[1:] if brings_own and ids[:1] == ids[1:2] else ids

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The text of a whole sequence. Unknown ids add nothing.

        Without ``spaces_between_special_tokens``, a decoder that joins tokens with spaces puts none between two
        consecutive added tokens.
        """
        if skip_special_tokens or spaces_between_special_tokens or self.shape.kind != "other":
            return self.backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]
        runs: list[list[int]] = [[]]
        for id in ids:
            if self.backend.id_to_token(id) is None:
                continue
            if runs[-1] and id in self.added_ids and runs[-1][-1] in self.added_ids:
                runs.append([])
            runs[-1].append(id)
        return "".join(self.backend.decode(run, skip_special_tokens=False) for run in runs)

    def token_bytes(self, id: int) -> bytes:
        """The bytes that one token adds to a text; empty for an unknown id.

        A leading space is kept; an added token adds its own text.
        """
        token = self.backend.id_to_token(id)
        if token is None:
            return b""
        if self.shape.kind == "byte_level":
            return byte_level_bytes(token)
        if self.shape.byte_fallback and (value := byte_token_value(token)) is not None:
            return bytes([value])
        if self.shape.kind == "sentencepiece" or self.shape.spells_spaces:
            return token.replace("▁", " ").encode()
        return self.backend.decode([id], skip_special_tokens=False).encode()

    def token_to_text(self, id: int) -> str:
        """The text of one token alone; bytes that are no whole character become U+FFFD."""
        return self.token_bytes(id).decode("utf-8", "replace")
