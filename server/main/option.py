"""One thing that an operator can set, under all of its names."""

from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from ..app.config import DEFAULTS
from .option_kinds import Kind

PREFIX: Final = "STENTOR_"
INT64: Final = 2**63 - 1


@dataclass(frozen=True)
class Option:
    """``path`` is where the value goes in :class:`..app.config.Config`; options that share one are joined."""

    name: str
    path: str
    kind: Kind
    help: str
    group: str
    aliases: tuple[str, ...] = ()
    """Names that it had before, which are not shown."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper().replace("-", "_")

    @property
    def default(self) -> Any:
        return reduce(getattr, self.path.split("."), DEFAULTS)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Names it goes by; of a switch also :attr:`opposite`."""
        return (self.name, self.opposite, *self.aliases) if self.kind.switch else (self.name, *self.aliases)

    @property
    def opposite(self) -> str:
        """What turns a switch off."""
        return f"no-{self.name}"
