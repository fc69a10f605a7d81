"""From a request's bytes to its struct; whatever is wrong with them becomes a :class:`BadRequest`."""

import re
from typing import Final, TypeVar

import msgspec

from .errors import BadRequest

Request = TypeVar("Request", bound=msgspec.Struct)

_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_KEY_BEFORE: Final = re.compile(rb'"([A-Za-z_][A-Za-z0-9_]{0,63})"\s*:[^":{}]*$')
_NOT_A_NUMBER: Final = re.compile(rb"-?(?:NaN|nan|Infinity|inf)")


def decode(decoder: msgspec.json.Decoder[Request], body: bytes) -> Request:
    """The request in ``body``.

    Raises BadRequest naming the field for a value of the wrong type or out of range, and with no
    field for bytes that are not UTF-8 or not a JSON object.
    """
    if not body:
        raise BadRequest("The body is empty; a JSON object is expected.")
    try:
        # The decoder leaves strings of unknown fields unchecked.
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not valid UTF-8 (byte {error.start}).") from None
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(str(error), body) from None
    except RecursionError:
        raise BadRequest("The JSON is nested too deeply.") from None


def _invalid_value(text: str) -> BadRequest:
    match = _PATH.search(text)
    if match is None:
        missing = re.search(r"missing required field `([^`]+)`", text)
        if missing is not None:
            return BadRequest(f"`{missing[1]}` is required.", missing[1], "missing_required_parameter")
        return BadRequest(f"The body must be a JSON object: {_plain(text)}.")
    param = match[1].split("[...]")[0]
    said = _plain(text[: match.start()])
    missing = re.search(r"missing required field `([^`]+)`", text)
    if missing is not None:
        param = f"{param}.{missing[1]}" if param else missing[1]
        return BadRequest(f"`{param}` is required.", param, "missing_required_parameter")
    return BadRequest(f"`{param}`: {said}.", param or None, "invalid_value")


def _plain(text: str) -> str:
    """msgspec's sentence in JSON's words."""
    text = text.replace("`", "").replace("Expected", "expected").replace("Object", "object")
    text = text.replace("Number out of range", "the number is out of range")
    text = re.sub(r"\bstr\b", "string", text)
    text = re.sub(r"\bint\b", "integer", text)
    text = re.sub(r"\bfloat\b", "number", text)
    text = re.sub(r"\bbool\b", "boolean", text)
    return text.replace(" | ", " or ")


def _malformed(text: str, body: bytes) -> BadRequest:
    """A syntax error; NaN and Infinity, which JSON does not have, are laid to the field that held them."""
    where = _BYTE.search(text)
    if where is not None:
        # The position may lie inside the word: the sign of -Infinity is read first.
        at = int(where[1])
        for start in (at, max(0, at - 1)):
            if _NOT_A_NUMBER.match(body, start):
                key = _KEY_BEFORE.search(body[max(0, start - 256) : start])
                param = key[1].decode("ascii") if key else None
                name = f"`{param}`" if param else "The body"
                return BadRequest(f"{name}: NaN and Infinity are not numbers in JSON.", param, "invalid_value")
        return BadRequest(f"The body is not valid JSON: {text.removeprefix('JSON is malformed: ')}.")
    if "utf-16" in text or "utf-8" in text:
        return BadRequest("The body holds a string that is not valid Unicode.")
    return BadRequest("The body is not valid JSON: it ends too early or holds an unfinished escape.")
