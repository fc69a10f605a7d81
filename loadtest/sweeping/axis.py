"""What is varied: the values of ``--axis NAME VALUES``."""

import math
import re
from typing import Final

Value = float | str
VALUES_HELP: Final = "1,2,4 names them; 1:16:x2 doubles from 1 to 16; 10:50:10 adds 10"
_MOST: Final = 1_000
_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")


class AxisError(ValueError):
    """An axis that cannot be used; the message is one line for the operator."""


def parse_axis(name: str, values: str) -> tuple[str, list[Value]]:
    """The parameter's name, without dashes in front, and its values in the order given. Raises :class:`AxisError`."""
    bare = name.removeprefix("--").replace("_", "-")
    if not _NAME.fullmatch(bare):
        raise AxisError(f"--axis {name}: expected the name of an option of `stentor bench serve`, such as concurrency")
    return bare, parse_values(values)


def parse_values(text: str) -> list[Value]:
    """``1,2,4``, ``1:16:x2``, ``10:50:10`` or words; numbers come as numbers. Raises :class:`AxisError`."""
    parts = text.split(":")
    if len(parts) == 3 and _number(parts[0]) is not None and _number(parts[1]) is not None:
        return list(_range(text, float(parts[0]), float(parts[1]), parts[2]))
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise AxisError(f"--axis values {text!r}: expected them between single commas ({VALUES_HELP})")
    if len(set(words)) < len(words):
        raise AxisError(f"--axis values {text!r}: expected each once; --repeats runs them more often")
    numbers = [_number(word) for word in words]
    if any(number is None for number in numbers):
        return list(words)
    return [number for number in numbers if number is not None]


def _range(text: str, low: float, high: float, step: str) -> list[float]:
    growing = step.startswith("x")
    size = _number(step[1:] if growing else step)
    if size is None or high < low or (growing and (size <= 1 or low <= 0)) or (not growing and size <= 0):
        raise AxisError(f"--axis values {text!r}: expected LOW:HIGH:xFACTOR or LOW:HIGH:STEP, upwards")
    found = [low]
    while (following := found[-1] * size if growing else low + len(found) * size) <= high * (1 + 1e-9):
        found.append(float(f"{following:.12g}"))
        if len(found) > _MOST:
            raise AxisError(f"--axis values {text!r}: more than {_MOST} of them")
    return found


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
