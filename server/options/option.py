"""One thing that an operator can set, under all of its names."""

from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from ..config.config import DEFAULTS
from .kinds import Kind

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
    """Names that it had before, or has elsewhere; they are not shown."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper().replace("-", "_")

    @property
    def default(self) -> Any:
        return reduce(getattr, self.path.split("."), DEFAULTS)

    @property
    def names(self) -> tuple[str, ...]:
        """All that it goes by, the one that is shown first."""
        return (self.name, *self.aliases)

    @property
    def opposites(self) -> tuple[str, ...]:
        """What turns a switch off; of others nothing."""
        return tuple(f"no-{name}" for name in self.names) if self.kind.switch else ()

    @property
    def spellings(self) -> tuple[str, ...]:
        return (*self.names, *self.opposites)
