"""One thing that an operator can set, under all of its names; all of them are read off the configuration's structs."""

from collections.abc import Iterator
from functools import reduce
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from stentor.protocols.ipc.flag import OPTION_PREFIX, Flag

from ..config.config import DEFAULTS, Config
from .kinds import KINDS, SWITCH, TEXT, TEXTS, Kind, choice, integer, integers

GROUPS: Final = {
    "model": "model",
    "models": "other models",
    "engine": "engine",
    "recovery": "recovery",
    "overload": "overload",
    "media": "media in requests",
    "store": "storage",
    "limits": "limits on requests",
    "realtime": "realtime sessions",
    "tools": "tool servers",
    "server": "server",
    "access": "access",
}
"""Titles, in the order in which they are shown."""

_GROUP_OF: Final = {
    "model": "model",
    "transcription": "models",
    "embedding": "models",
    "speech": "models",
    "demo": "models",
    "engine.recovery": "recovery",
    "engine": "engine",
    "overload": "overload",
    "media": "media",
    "store": "store",
    "limits": "limits",
    "realtime": "realtime",
    "mcp": "tools",
    "http": "server",
    "observe": "server",
    "access": "access",
}
"""Group by the beginning of the path; an option may name another."""


class Option(msgspec.Struct, frozen=True):
    """``path`` is where the value goes in :class:`..config.config.Config`."""

    name: str
    path: str
    kind: Kind
    help: str
    group: str
    aliases: tuple[str, ...] = ()
    """Names that it had before, or has elsewhere; they are not shown."""
    foreign_opposites: tuple[str, ...] = ()
    """Names elsewhere of what turns a switch off; they are not shown."""

    @property
    def variable(self) -> str:
        return OPTION_PREFIX + self.name.upper().replace("-", "_")

    @property
    def default(self) -> Any:
        return reduce(getattr, self.path.split("."), DEFAULTS)

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, the shown one first."""
        return (self.name, *self.aliases)

    @property
    def opposites(self) -> tuple[str, ...]:
        """Names that turn a switch off; empty for other options."""
        own = tuple(f"no-{name}" for name in self.names) if self.kind.switch else ()
        return (*own, *self.foreign_opposites)

    @property
    def spellings(self) -> tuple[str, ...]:
        return (*self.names, *self.opposites)


def _options(struct: type[msgspec.Struct], path: str) -> Iterator[Option]:
    for field, hint in get_type_hints(struct, include_extras=True).items():
        here = f"{path}{field}"
        if get_origin(hint) is Annotated:
            bare, flag = get_args(hint)
            name = flag.name or field.replace("_", "-")
            group = flag.group or next(group for start, group in _GROUP_OF.items() if here.startswith(start))
            yield Option(name, here, _kind_of(bare, flag), flag.help, group, flag.aliases, flag.opposites)
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _options(hint, f"{here}.")


def _kind_of(hint: Any, flag: Flag) -> Kind:
    """How text becomes a value of the field's type."""
    if flag.kind:
        return KINDS[flag.kind]
    if get_origin(hint) in (Union, UnionType):
        (hint,) = set(get_args(hint)) - {NoneType}
    if get_origin(hint) is Literal:
        return choice(get_args(hint))
    if hint == tuple[int, ...]:
        return integers(flag.low, flag.high)
    return integer(flag.low, flag.high) if hint is int else {bool: SWITCH, str: TEXT, tuple[str, ...]: TEXTS}[hint]


OPTIONS: Final = tuple(sorted(_options(Config, ""), key=lambda option: list(GROUPS).index(option.group)))
