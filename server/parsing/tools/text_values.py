"""A schema's constraints on strings, as terminals of a grammar."""

import re
from collections.abc import Sequence
from typing import Any, Final

MAX_LENGTH: Final = 2000
"""Characters up to which bounds of strings are held; each costs a state."""


def string_conditions(schema: Any) -> list[str]:
    """A schema's constraints on a string, as patterns of a terminal."""
    conditions: list[str] = []
    least, most = schema.get("minLength"), schema.get("maxLength")
    low = least if isinstance(least, int) and 0 < least <= MAX_LENGTH else 0
    high = most if isinstance(most, int) and 0 <= most <= MAX_LENGTH else None
    if low or high is not None:
        conditions.append(f"/(?s:.{{{low},{'' if high is None else max(high, low)}}})/")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and pattern:
        conditions.append(_searched(pattern))
    return conditions


def _searched(pattern: str) -> str:
    """A terminal for text in which the pattern is found, as JSON schema means it."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    inner = pattern[begins : len(pattern) - ends]
    slashed = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", inner).replace("\n", r"\n").replace("\r", r"\r")
    return f"/{'' if begins else '(?s:.*)'}({slashed}){'' if ends else '(?s:.*)'}/"


def without(markers: Sequence[str]) -> str:
    """A terminal's condition: the text contains none of the markers."""
    escaped = (re.escape(marker).replace("/", r"\/").replace("\n", r"\n") for marker in markers)
    return f"~/(?s:.*)({'|'.join(escaped)})(?s:.*)/"
