"""Compiles and follows grammars with llguidance, which is imported when the first grammar comes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, Self

from .object_keys import KeyTokens, ObjectKeys
from .token_sets import set_of
from .vocabulary import TokenBytes

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_LEXER_STATES: Final = 100_000
"""One to two KiB each, in every sequence with the grammar."""
MAX_GRAMMAR_SIZE: Final = 250_000
"""Symbols."""
INITIAL_LEXER_FUEL: Final = 1_000_000
"""About 20 ms."""
STEP_LEXER_FUEL: Final = 200_000
"""For one mask: about 15 ms."""
STEP_MAX_ITEMS: Final = 10_000
"""For one mask: about 6 ms for the most ambiguous grammars, with time growing much faster than this number. Schemas of
hundreds of properties or options stay far below."""
MAX_ROW_ITEMS: Final = 1000
"""Parses of the text so far that are followed at once; an optional property of a schema takes four. The cost of the
next token may grow with their cube, and all rows wait for it: 6 ms here, 40 ms at llguidance's own limit of 2,000."""


def parser_limits() -> "LLParserLimits":
    from llguidance import LLParserLimits  # late: only grammars need it

    return LLParserLimits(
        initial_lexer_fuel=INITIAL_LEXER_FUEL,
        step_lexer_fuel=STEP_LEXER_FUEL,
        step_max_items=STEP_MAX_ITEMS,
        max_items_in_row=MAX_ROW_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_GRAMMAR_SIZE,
        verbose_errors=False,
    )


_SPECIAL: Final = b"\xff"
"""Marks a special token for llguidance."""
_NO_FORCING: Final = '%llguidance {"no_forcing": true}\n'
"""Disables forced tokens. Where only one text can follow, the model still chooses its tokens: the engine does not know
how it would split the text, and an unfamiliar split would harm what follows."""

_JSON: Final = ("%json", '"json_schema"')
"""Marks of a grammar with a part made from a JSON schema."""
_CONTROL: Final = frozenset(bytes([value]) for value in range(0x20)) - {b"\t", b"\n", b"\r"}
"""Control characters that JSON does not contain."""


class GrammarError(ValueError):
    """The grammar cannot be used; the message is one line."""


class Matcher(Protocol):
    """The position of one text in its grammar."""

    def consume(self, token: int) -> bool:
        """Advance by a token; False if the grammar does not allow it or has become too complex."""

    def allows(self, token: int) -> bool: ...

    def accepting(self) -> bool:
        """Whether the text may end here."""

    def stopped(self) -> bool:
        """Whether nothing can follow; also true after an error."""

    def error(self) -> str:
        """Why the matcher cannot go on; "" if it can."""

    def allowed(self) -> int:
        """The tokens that may follow, as a set of :mod:`.token_sets`; includes end tokens where the text may end."""

    def copy(self) -> Self: ...


class GuidanceMatcher:
    """A :class:`Matcher` over llguidance."""

    __slots__ = ("_free", "_inner", "_keys", "_size")

    def __init__(self, inner: "LLMatcher", size: int, keys: ObjectKeys | None = None, free: int = 0) -> None:
        """``keys`` prevents repeated keys in JSON objects. ``free`` is a set of tokens: where one of them may follow,
        the text is not JSON, and keys are not checked."""
        self._inner = inner
        self._size = size
        self._keys = keys
        self._free = free

    def consume(self, token: int) -> bool:
        taken = self._inner.consume_token(token)
        if taken and self._keys is not None:
            self._keys.take(token)
        return taken

    def allows(self, token: int) -> bool:
        # not validate_tokens: it refuses a special token behind text that could go on, which mask and consume_token
        # allow
        return bool(self.allowed() >> token & 1)

    def accepting(self) -> bool:
        return self._inner.is_accepting()

    def stopped(self) -> bool:
        return self._inner.is_stopped()

    def error(self) -> str:
        return one_line(self._inner.get_error()) if self._inner.is_error() else ""

    def allowed(self) -> int:
        tokens = int.from_bytes(self._inner.compute_bitmask(), "little") & ((1 << self._size) - 1)
        if self._keys is None or tokens & self._free:
            return tokens
        return tokens & ~self._keys.repeating(self._size) or tokens

    def copy(self) -> "GuidanceMatcher":
        keys = None if self._keys is None else self._keys.copy()
        return GuidanceMatcher(self._inner.deep_copy(), self._size, keys, self._free)


class Compiler:
    """Compiles grammars for one vocabulary. Usable from any thread, by one at a time.

    The constructor imports llguidance and sorts all tokens.
    """

    def __init__(self, vocabulary: TokenBytes) -> None:
        """Raises :class:`GrammarError` for a vocabulary that llguidance cannot use."""
        from llguidance import LLTokenizer  # late: only grammars need it

        self._size = len(vocabulary.tokens)
        wrapper = _Wrapper(vocabulary)
        with _failing_as("this model's vocabulary cannot be used with grammars"):
            self._tokenizer: LLTokenizer = LLTokenizer(
                wrapper,  # type: ignore[arg-type]  # it asks for no more than these
                n_vocab=self._size,
                eos_token=vocabulary.eos or None,
            )
        wrapper.tokenizer = self._tokenizer
        self._key_tokens = KeyTokens(vocabulary.tokens)
        self._control = set_of((id for id, text in enumerate(wrapper.tokens) if text in _CONTROL), self._size)
        self._limits: LLParserLimits = parser_limits()

    def compile(self, source: str) -> GuidanceMatcher:
        """Compile a grammar without holding the interpreter's lock. Raises :class:`GrammarError`."""
        from llguidance import LLMatcher  # late, as above

        text = source if source.lstrip().startswith("{") else _NO_FORCING + source
        with _failing_as("the grammar cannot be used"):
            inner = LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        if inner.is_error():
            raise GrammarError(f"the grammar cannot be used: {one_line(inner.get_error())}")
        has_json = any(mark in source for mark in _JSON)
        return GuidanceMatcher(inner, self._size, ObjectKeys(self._key_tokens) if has_json else None, self._control)


class _Wrapper:
    """The tokenizer interface that llguidance reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: TokenBytes) -> None:
        special = frozenset(vocabulary.special)
        self.tokens: Sequence[bytes] = [
            _SPECIAL + text if id in special else text for id, text in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = vocabulary.special
        self.eos_token_id = vocabulary.eos[0] if vocabulary.eos else 0
        self.tokenizer: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """Called where a grammar forces text; any tokenization will do."""
        return [] if self.tokenizer is None else self.tokenizer.greedy_tokenize(text)


@contextmanager
def _failing_as(what: str) -> Iterator[None]:
    """Turn any failure into a :class:`GrammarError`, also a Rust panic, which is not an ``Exception``."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise GrammarError(f"{what}: {one_line(str(error))}") from error


def one_line(text: str) -> str:
    """The text on one line, without llguidance's own marks."""
    return " ".join(text.replace("<non-verbose/>", "").split())[:500]
