"""llguidance, as far as the engine needs it. It is imported when the first grammar comes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, Self

from .object_keys import KeyTokens, ObjectKeys
from .token_sets import set_of
from .vocabulary import TokenBytes

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_LEXER_STATES: Final = 100_000
"""One to two KiB each, in every sequence that has the grammar."""
MAX_GRAMMAR_SIZE: Final = 250_000
"""Symbols."""
INITIAL_LEXER_FUEL: Final = 1_000_000
"""Some 20 ms."""
STEP_LEXER_FUEL: Final = 200_000
"""Some 15 ms, in one mask."""
STEP_MAX_ITEMS: Final = 10_000
"""Some 6 ms, in one mask, where a grammar is as ambiguous as can be: time grows much faster than this number. Schemas
of hundreds of properties or options come nowhere near."""
MAX_ROW_ITEMS: Final = 1000
"""Ways to read the text so far that are followed at once; an optional property of a schema takes four. What the next
token costs may grow with their cube: 6 ms here, and 40 ms at llguidance's own 2,000, in which all rows wait."""


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
"""How llguidance tells a special token from text."""
_NO_FORCING: Final = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, its tokens are still the model's to choose: which ones it would take is known to
nobody here, and a cut that it never saw would spoil what comes after."""

_JSON: Final = ("%json", '"json_schema"')
"""Where a grammar has a part that is made of a schema."""
_CONTROL: Final = frozenset(bytes([value]) for value in range(0x20)) - {b"\t", b"\n", b"\r"}
"""Stand nowhere in JSON."""


class GrammarError(ValueError):
    """A grammar that cannot be used; one line says why."""


class Matcher(Protocol):
    """Where one text stands in its grammar."""

    def consume(self, token: int) -> bool:
        """Takes the next token; false where the grammar does not allow it, or has become too complex."""

    def allows(self, token: int) -> bool: ...

    def accepting(self) -> bool:
        """Whether the text may end here."""

    def stopped(self) -> bool:
        """Whether nothing can follow. So it is in an error, too."""

    def error(self) -> str:
        """Why it cannot go on; "" while it can."""

    def allowed(self) -> int:
        """The tokens that may follow, as a set of :mod:`.token_sets`; those that end it, where it may end."""

    def copy(self) -> Self: ...


class GuidanceMatcher:
    """The real one."""

    __slots__ = ("_free", "_inner", "_keys", "_size")

    def __init__(self, inner: "LLMatcher", size: int, keys: ObjectKeys | None = None, free: int = 0) -> None:
        """``keys``: of objects in the text, none of which is drawn twice. ``free``: tokens, as a set; where one of them
        may follow, the text is no JSON."""
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
        # not validate_tokens: it refuses a special token behind text that could go on, where mask and consume_token
        # take it
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
    """Makes matchers over one vocabulary. May be used from any thread, one at a time.

    Making it imports llguidance and takes as long as sorting all tokens.
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
        """Raises :class:`GrammarError`. The interpreter's lock is free meanwhile."""
        from llguidance import LLMatcher  # late, as above

        text = source if source.lstrip().startswith("{") else _NO_FORCING + source
        with _failing_as("the grammar cannot be used"):
            inner = LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        if inner.is_error():
            raise GrammarError(f"the grammar cannot be used: {one_line(inner.get_error())}")
        has_json = any(mark in source for mark in _JSON)
        return GuidanceMatcher(inner, self._size, ObjectKeys(self._key_tokens) if has_json else None, self._control)


class _Wrapper:
    """What llguidance reads of a tokenizer."""

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
        """Asked for where a grammar forces text; any cut will do."""
        return [] if self.tokenizer is None else self.tokenizer.greedy_tokenize(text)


@contextmanager
def _failing_as(what: str) -> Iterator[None]:
    """Makes whatever goes wrong a :class:`GrammarError`, a panic too, which is no ``Exception``."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise GrammarError(f"{what}: {one_line(str(error))}") from error


def one_line(text: str) -> str:
    """Without the marks that are llguidance's own."""
    return " ".join(text.replace("<non-verbose/>", "").split())[:500]
