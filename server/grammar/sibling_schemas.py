"""What schemas of one value declare for one another: the properties of an object that none of them closes."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class SiblingSchemas(NamedTuple):
    """Other schemas that hold for the same value."""

    names: frozenset[str]
    """Declared properties."""
    closed: bool
    """Whether none of them allows others."""


NOTHING_BESIDE: Final = SiblingSchemas(frozenset(), closed=True)


def is_open(schema: Mapping[str, Any]) -> bool:
    """Whether a schema says that an object may have properties which it does not name."""
    return not {"patternProperties", "propertyNames"}.isdisjoint(schema) or (
        schema.get("additionalProperties", False) is not False
    )


def demands_further(schema: Mapping[str, Any]) -> bool:
    """Whether an object must have more properties than it names."""
    least = schema.get("minProperties")
    names = schema.get("properties")
    return isinstance(least, int | float) and isinstance(names, dict) and least > len(names)


def together(*parts: SiblingSchemas) -> SiblingSchemas:
    return SiblingSchemas(frozenset().union(*(part.names for part in parts)), all(part.closed for part in parts))
