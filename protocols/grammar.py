"""What a grammar may cost: plain numbers that the server's check and the engine's matchers share.

A grammar that passes the check compiles in the engine too, for both use the same parser with these limits.
"""

from typing import Final

MAX_GRAMMAR_CHARS: Final = 4 << 20
"""Of a whole source, as it travels; a schema grows little on its way into one."""

MAX_ITEMS_IN_ROW: Final = 2000
"""Ambiguity: Earley items of one position."""
INITIAL_LEXER_FUEL: Final = 1_000_000
"""Expressions built while a grammar compiles; some 20 µs a thousand."""
STEP_LEXER_FUEL: Final = 200_000
"""Expressions built for one mask; some 70 µs a thousand."""
STEP_MAX_ITEMS: Final = 50_000
"""Earley items of one mask; some 50 µs a thousand."""
MAX_LEXER_STATES: Final = 50_000
"""Of one grammar, over its life; some 2 kB each."""
MAX_GRAMMAR_SIZE: Final = 250_000
"""Symbols in all productions."""


def parser_limits() -> dict[str, int | bool]:
    """Keyword arguments of ``llguidance.LLParserLimits``. Errors do not quote grammars: they reach logs and clients."""
    return {
        "max_items_in_row": MAX_ITEMS_IN_ROW,
        "initial_lexer_fuel": INITIAL_LEXER_FUEL,
        "step_lexer_fuel": STEP_LEXER_FUEL,
        "step_max_items": STEP_MAX_ITEMS,
        "max_lexer_states": MAX_LEXER_STATES,
        "max_grammar_size": MAX_GRAMMAR_SIZE,
        "verbose_errors": False,
    }
