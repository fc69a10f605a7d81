"""The configuration as an operator may read it from a running server."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from stentor.protocols.ipc.flag import Flag

from .config import Config

SECRET_KINDS: Final = frozenset({"keys", "collector", "tool_servers"})
"""Kinds of options whose values are not shown: keys, and addresses that may hold a password."""


def described(config: Config) -> dict[str, Any]:
    """Values of all options by name, as JSON has them; of secret ones, whether they are given."""
    return dict(_values(config))


def _values(struct: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    for field, hint in get_type_hints(type(struct), include_extras=True).items():
        value = getattr(struct, field)
        if get_origin(hint) is Annotated:
            flag = next(each for each in get_args(hint) if isinstance(each, Flag))
            secret = flag.kind in SECRET_KINDS
            shown = bool(value) if secret else msgspec.to_builtins(value, str_keys=True, enc_hook=str)
            yield flag.name or field.replace("_", "-"), shown
        elif isinstance(value, msgspec.Struct):
            yield from _values(value)
