"""What is varied: the values of ``--axis NAME VALUES``."""

import math
import re
from typing import Final

from ..tool import UsageError

Value = float | str
VALUES_HELP: Final = "1,2,4 names them; 1:16:x2 doubles from 1 to 16; 10:50:10 adds 10"
_MOST: Final = 1_000


def parse_axis(name: str, text: str) -> tuple[str, list[Value]]:
    """The parameter's name, without dashes in front, and its values: ``1,2,4``, ``1:16:x2``, ``10:50:10`` or words.

    Numbers come as numbers. Raises :class:`.tool.UsageError`.
    """
    bare = name.removeprefix("--").replace("_", "-")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", bare):
        raise UsageError(f"--axis {name}: expected the name of an option of `stentor bench serve`, such as concurrency")
    low, *rest = (_number(part) for part in text.split(":"))
    if low is not None and len(rest) == 2 and rest[0] is not None:
        return bare, list(_range(text, low, rest[0]))
    words = [word.strip() for word in text.split(",")]
    if not all(words) or len(set(words)) < len(words):
        raise UsageError(f"--axis values {text!r}: expected each once, between single commas ({VALUES_HELP})")
    numbers = [number for word in words if (number := _number(word)) is not None]
    return bare, [*(numbers if len(numbers) == len(words) else words)]


def _range(text: str, low: float, high: float) -> list[float]:
    step = text.rpartition(":")[2]
    growing = step.startswith("x")
    size = _number(step.removeprefix("x"))
    if size is None or high < low or size <= growing or (growing and low <= 0):
        raise UsageError(f"--axis values {text!r}: expected LOW:HIGH:xFACTOR or LOW:HIGH:STEP, upwards")
    found = [low]
    while (following := found[-1] * size if growing else low + len(found) * size) <= high * (1 + 1e-9):
        found.append(float(f"{following:.12g}"))
        if len(found) > _MOST:
            raise UsageError(f"--axis values {text!r}: more than {_MOST} of them")
    return found


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
