"""How a field of the configuration is set from outside."""

from typing import Final

import msgspec

OPTION_PREFIX: Final = "STENTOR_"
"""How the names of options begin in the environment."""


class Flag(msgspec.Struct, frozen=True):
    """Annotates a field that is an option: on the command line, in the environment and in a TOML file.

    The option's name follows from the field's, its values from the field's type, its default is the field's.
    """

    help: str
    low: int = 0
    """Bounds of integers, both included."""
    high: int = 2**63 - 1
    name: str = ""
    """Overrides the field's name."""
    kind: str = ""
    """How its text is read, by its name in ``server.options.kinds``, where the type does not say."""
    group: str = ""
    """Overrides the group of the field's struct."""
    aliases: tuple[str, ...] = ()
    """Names that it had before, or has elsewhere; they are not shown."""
    opposites: tuple[str, ...] = ()
    """Of a switch: names elsewhere of what turns it off; they are not shown."""
