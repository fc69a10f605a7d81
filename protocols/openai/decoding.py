"""From a request's bytes to its struct; whatever is wrong with them becomes a :class:`BadRequest`."""

import re
from typing import Any, Final, TypeVar

import msgspec

from .bounds import LIST_TOO_LONG, depth_at_most, too_deep
from .errors import BadRequest
from .limits import Limits
from .locating import crowded_field, deep_field, half_a_character, path_at

Request = TypeVar("Request", bound=msgspec.Struct)

_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_MISSING: Final = re.compile(r"missing required field `([^`]+)`")
_MAX_SAID: Final = 200
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_NOT_A_NUMBER: Final = re.compile(rb"-?(?:NaN|nan|Infinity|inf)")


def decode(decoder: msgspec.json.Decoder[Request], body: bytes, limits: Limits) -> Request:
    """The request in ``body``.

    Raises BadRequest naming the field, also of bytes that are not UTF-8 or not JSON, as far as they
    lie in one.
    """
    if not body:
        raise BadRequest("The body is empty; a JSON object is expected.")
    opened = body.count(b"[") + body.count(b"{")
    if too_many_values(body, limits):
        raise _too_many_values(limits.max_json_values, crowded_field(body))
    try:
        # The decoder leaves strings of unknown fields unchecked.
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _undecodable(f"is not valid UTF-8 (byte {error.start})", path_at(body, error.start)) from None
    try:
        request = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(str(error), body) from None
    except RecursionError:
        raise too_deep(limits.max_json_depth, deep_field(body)) from None
    if opened > limits.max_json_depth:
        depth_at_most(request, limits.max_json_depth)
    return request


def too_many_values(body: bytes, limits: Limits) -> bool:
    """Whether decoding it would cost more than it may."""
    opened = body.count(b"[") + body.count(b"{")
    return 8 * (opened + body.count(b":")) + body.count(b",") > limits.max_json_values


def converted(value: Any, type: Any, where: str, *, strict: bool = True) -> Any:
    """``value``, which stands at ``where`` in a request, as ``type``. Raises BadRequest naming the field.

    What is not ``strict`` may write numbers and truth values as text.
    """
    try:
        return msgspec.convert(value, type, strict=strict)
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error), where) from None


def converted_form(fields: dict[str, Any], type: type[Request]) -> Request:
    """A form's fields as ``type``: all values are text. Raises BadRequest naming the field."""
    try:
        return msgspec.convert(fields, type, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error)) from None


def _too_many_values(most: int, field: str | None) -> BadRequest:
    where = f"`{field}`" if field else "The JSON"
    return BadRequest(
        f"{where} holds too many values; a body's commas, and its colons and opening brackets eight times, those "
        f"within texts included, may come to {most}.",
        field,
        LIST_TOO_LONG,
    )


def _invalid_value(text: str, where: str = "") -> BadRequest:
    """msgspec's complaint, about a value that stands at ``where`` in the body."""
    match = _PATH.search(text)
    missing = _MISSING.search(text)
    if match is None and missing is None and not where:
        return BadRequest(f"The body must be a JSON object: {_plain(text)}.")
    param = match[1].split("[...]")[0] if match else ""
    param = f"{where}.{param}" if where and param else where or param
    said = _plain(text[: match.start()] if match else text)
    if missing is not None:
        param = f"{param}.{missing[1]}" if param else missing[1]
        return BadRequest(f"`{param}` is required.", param, "missing_required_parameter")
    return BadRequest(f"`{param}`: {said}.", param or None, "invalid_value")


def _plain(text: str) -> str:
    """msgspec's sentence in JSON's words."""
    if len(text) > _MAX_SAID:  # it repeats what the client wrote
        text = text[:_MAX_SAID] + "…"
    text = text.replace("`", "").replace("Expected", "expected").replace("Object", "object")
    text = text.replace("Number out of range", "the number is out of range")
    text = re.sub(r"\bstr\b", "string", text)
    text = re.sub(r"\bint\b", "integer", text)
    text = re.sub(r"\bfloat\b", "number", text)
    text = re.sub(r"\bbool\b", "boolean", text)
    return text.replace(" | ", " or ")


def _malformed(text: str, body: bytes) -> BadRequest:
    """A syntax error. NaN and Infinity, which JSON does not have, are told as what they are."""
    half = half_a_character(body) if "surrogate" in text or "utf-" in text or "truncated" in text else None
    if half is not None:
        return _undecodable(f"holds half a character (byte {half})", path_at(body, half))
    where = _BYTE.search(text)
    if where is None:
        return BadRequest("The body is not valid JSON: it ends too early or holds an unfinished escape.")
    at = int(where[1])
    param = path_at(body, at)
    # The position may lie inside the word: the sign of -Infinity is read first.
    if any(_NOT_A_NUMBER.match(body, start) for start in (at, max(0, at - 1))):
        name = f"`{param}`" if param else "The body"
        return BadRequest(f"{name}: NaN and Infinity are not numbers in JSON.", param, "invalid_value")
    return _undecodable(f"is not valid JSON: {text.removeprefix('JSON is malformed: ')}", param)


def _undecodable(what: str, param: str | None) -> BadRequest:
    return BadRequest(f"The body {what}{f', in `{param}`' if param else ''}.", param)
