"""How much work one grammar may make: in the engine, and for whoever checks grammars before they come there."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_LEXER_STATES: Final = 100_000
"""One to two KiB each, in every choice that has the grammar."""
MAX_GRAMMAR_SIZE: Final = 250_000
"""Symbols."""
INITIAL_LEXER_FUEL: Final = 1_000_000
"""Some 20 ms."""
STEP_LEXER_FUEL: Final = 200_000
"""Some 15 ms, in one mask."""
STEP_MAX_ITEMS: Final = 50_000
"""Some 3 ms, in one mask."""


def parser_limits() -> "LLParserLimits":
    from llguidance import LLParserLimits  # late: only grammars need it

    return LLParserLimits(
        initial_lexer_fuel=INITIAL_LEXER_FUEL,
        step_lexer_fuel=STEP_LEXER_FUEL,
        step_max_items=STEP_MAX_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_GRAMMAR_SIZE,
        verbose_errors=False,
    )
