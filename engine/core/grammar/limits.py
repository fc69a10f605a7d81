"""How much work one grammar may make: in the engine, and for whoever checks grammars before they come there."""

from typing import TYPE_CHECKING, Final

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
