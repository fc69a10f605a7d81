"""Bounds for numbers, so that their digits end."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from .refusals import refusal

MAX_INTEGER: Final = 2**53 - 1
"""Readers of JSON agree up to here (RFC 8259, section 6)."""
MAX_NUMBER: Final = 1e15
MAX_DECIMALS: Final = 9
"""llguidance takes steps no finer."""
_MAX_STEP: Final = 2**31


def bounded_number(given: Mapping[str, Any], integer: bool, path: str) -> dict[str, Any]:
    """A number's keywords, with missing bounds added. Raises BadRequest."""
    for key, value in given.items():
        if isinstance(value, bool) and key in ("exclusiveMinimum", "exclusiveMaximum"):
            continue  # draft 4: a flag beside the bound
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise refusal(f"{path}.{key}", "expected a number")
    most = MAX_INTEGER if integer else MAX_NUMBER
    made: dict[str, Any] = {"minimum": -most, "maximum": most}
    for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        value = given.get(key)
        if value is None or value is False:
            continue
        if value is True:
            made[key] = given.get("minimum" if key == "exclusiveMinimum" else "maximum", 0)
            continue
        if (value > most) if "inimum" in key else (value < -most):
            raise refusal(f"{path}.{key}", f"numbers beyond {most:.0f} are not supported")
        if abs(value) <= most:
            made[key] = value
    step = given.get("multipleOf")
    if step is not None:
        if not 0 < abs(step) < _MAX_STEP or (decimals(step) > MAX_DECIMALS):
            raise refusal(f"{path}.multipleOf", f"expected a number above 0 with at most {MAX_DECIMALS} decimals")
        made["multipleOf"] = abs(step)
    elif not integer and made["minimum"] == made["maximum"] and decimals(made["minimum"]) <= MAX_DECIMALS:
        made.update(_alone(made["minimum"]))
    elif not integer:
        made["multipleOf"] = float(f"1e-{MAX_DECIMALS}")
    return made


def exact_number(value: float, path: str) -> dict[str, Any]:
    """A schema of this number alone, written without exponent. Raises BadRequest."""
    if float(value).is_integer():
        value = int(value)
    if abs(value) > MAX_INTEGER:
        raise refusal(path, f"numbers beyond {MAX_INTEGER} are not supported")
    if isinstance(value, int):
        return {"type": "integer", "minimum": value, "maximum": value}
    if decimals(value) > MAX_DECIMALS:
        raise refusal(path, f"numbers with more than {MAX_DECIMALS} decimals are not supported")
    return {"type": "number", **_alone(value)}


def _alone(value: float) -> dict[str, float]:
    """Bounds and step that only this number satisfies.

    llguidance divides floats, and does not accept 0.3 as a multiple of 0.1: so the step is the largest that it accepts.
    Without one the number may have any count of trailing zeros.
    """
    bounds = {"minimum": value, "maximum": value}
    for digits in range(decimals(value), MAX_DECIMALS + 1):
        step = float(f"1e-{digits}")
        if (value / step).is_integer():
            return {**bounds, "multipleOf": step}
    return bounds


def decimals(value: float) -> int:
    """Digits behind the point."""
    exponent = Decimal(repr(value)).normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
