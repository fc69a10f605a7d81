"""Typed reads from an untyped model description: a config.json or GGUF metadata."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard, TypeVar

import msgspec

T = TypeVar("T")

LARGEST_SIZE = (1 << 31) - 1
LARGEST_NUMBER = 1e30
"""Bounds on the sizes and numbers of real models."""
MOST_LAYERS = 4096
MOST_EXPERTS = 4096
LONGEST_CONTEXT = 1 << 30


class ConfigError(Exception):
    """A model's description cannot be used. The message is a clause without a full stop, to be put after a name."""


class UnknownArchitectureError(ConfigError):
    """A config.json has an unknown architecture, or an unknown form of one."""


def _is_number(value: object) -> TypeGuard[int | float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -LARGEST_NUMBER <= value <= LARGEST_NUMBER  # false for NaN


class Fields(msgspec.Struct, frozen=True):
    """Fields by name. Null counts as absent. Every read raises :class:`ConfigError`, naming the field, if it is missing
    without a default, has the wrong type, or is out of range."""

    values: Mapping[str, object]
    prefix: str = ""
    """Prefix of every name that is read."""

    def get(self, name: str) -> object | None:
        return self.values.get(self.prefix + name)

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def _wrong(self, name: str, expected: str) -> ConfigError:
        value = self.get(name)
        if value is None:
            return ConfigError(f"{self.prefix}{name} is missing, expected {expected}")
        return ConfigError(f"{self.prefix}{name} is {str(value)[:60]!r}, expected {expected}")

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST_SIZE) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not _is_number(value):
            raise self._wrong(name, "a number")
        return float(value)

    def positive(self, name: str, default: float) -> float:
        value = self.number(name, default)
        if value <= 0:
            raise self._wrong(name, "a number above 0")
        return value

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if self.has(name) else None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def one_of(self, name: str, kinds: Mapping[str, T], default: str | None = None) -> T:
        """What a text stands for."""
        value = self.text(name, default)
        if value not in kinds:
            raise self._wrong(name, f"one of {', '.join(kinds)}")
        return kinds[value]

    def texts(self, name: str) -> tuple[str, ...] | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(x, str) for x in value):
            raise self._wrong(name, "a list of texts")
        return tuple(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Empty when absent."""
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, Sequence) or not all(_is_number(x) for x in value):
            raise self._wrong(name, "a list of numbers")
        return tuple(float(x) for x in value)

    def bounds(self, name: str) -> tuple[float, float]:
        """(lower, upper) bounds, possibly infinite, which files write in several ways; infinite if absent."""
        value = self.get(name)
        if value is None:
            return -math.inf, math.inf
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
            raise self._wrong(name, "a least and a most")
        found = []
        for bound in value:
            written = bound.get("__float__") if isinstance(bound, Mapping) else bound
            if written in ("Infinity", "-Infinity", math.inf, -math.inf):
                found.append(float(str(written)))
            elif _is_number(written):
                found.append(float(written))
            else:
                raise self._wrong(name, "a least and a most")
        return found[0], found[1]

    def token_ids(self, name: str) -> tuple[int, ...]:
        """An id or a list of ids; empty if absent. Negative ids, which some files use for "none", are left out."""
        value = self.get(name)
        if value is None:
            return ()
        ids: list[int] = []
        for item in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(item, int) or isinstance(item, bool) or item > LARGEST_SIZE:
                raise self._wrong(name, "a token id or a list of them")
            ids.append(item)
        return tuple(sorted({token for token in ids if token >= 0}))

    def token_id(self, name: str) -> int | None:
        """The first id; None if absent."""
        ids = self.token_ids(name)
        return ids[0] if ids else None

    def table(self, name: str) -> Mapping[str, object] | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(name, "a table")
        return value
