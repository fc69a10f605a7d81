"""What checking grammars may take up."""

import msgspec


class GrammarLimits(msgspec.Struct, frozen=True):
    timeout: float = 1.5
    """Seconds for one grammar to compile."""
    cache: int = 4096
    """Grammars of which it is remembered whether they can be used."""
    max_waiting: int = 32
    """Grammars that wait while another one is checked."""
