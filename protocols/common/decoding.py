"""Decodes a request's bytes into its struct; every fault becomes a :class:`BadRequest`."""

import re
from functools import cache, reduce
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from .bounds import LIST_TOO_LONG, depth_at_most, too_deep
from .errors import BadRequest, missing, wrong
from .limits import Limits
from .locating import crowded_field, deep_field, half_a_character, path_at

Request = TypeVar("Request", bound=msgspec.Struct)

_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_MISSING: Final = re.compile(r"missing required field `([^`]+)`")
_NOT_AMONG: Final = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)
_STEP: Final = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
"""A place in a list or a map, or the name of a field, in msgspec's paths."""
_MAX_SAID: Final = 200
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_NULL: Final = "got `null`"
_VALUE_BYTES: Final = 72
"""Memory for each comma: an integer or a short text, and its place in a list."""
_OBJECT_BYTES: Final = 128
"""And for a colon or an opening bracket."""
_WIDE: Final = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))
"""Lead bytes of characters that take four bytes in memory; escapes may produce such characters too."""
_type_info: Final = cache(inspect.type_info)
_NOT_A_NUMBER: Final = re.compile(rb"-?(?:NaN|nan|Infinity|inf)")


def decode(decoder: msgspec.json.Decoder[Request], body: bytes, limits: Limits, what: str = "The body") -> Request:
    """The request in ``body``, which errors call ``what``. A null means that the field is missing, unless the field's
    type has a null.

    Raises BadRequest naming the field, also for bytes that are not UTF-8 or not JSON, if they lie in a field.
    """
    if not body:
        raise BadRequest(f"{what} is empty; a JSON object is expected.")
    opened = body.count(b"[") + body.count(b"{")
    if too_many_values(body, limits):
        raise _too_many_values(limits.max_json_values, crowded_field(body))
    try:
        # The decoder leaves strings of unknown fields unchecked.
        if not body.isascii():
            body.decode("utf-8")
    except UnicodeDecodeError as error:
        fault = f"is not valid UTF-8 (byte {error.start})"
        raise _undecodable(what, fault, path_at(body, error.start)) from None
    try:
        request = decode_json(decoder, body)
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error), decoder.type, what=what) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(str(error), body, what) from None
    except RecursionError:
        raise too_deep(limits.max_json_depth, deep_field(body)) from None
    if opened > limits.max_json_depth:
        depth_at_most(request, limits.max_json_depth)
    return request


def too_many_values(body: bytes, limits: Limits) -> bool:
    """Whether decoding it would cost more than it may."""
    return 8 * _opened(body) + body.count(b",") > limits.max_json_values


def decoded_bytes(body: bytes, limits: Limits) -> int:
    """Most memory that decoding takes, in bytes: decoded values, and texts twice while they are read. One wide
    character makes its whole text wide."""
    ascii = body.isascii()
    wide = b"\\u" in body or not (ascii or all(lead not in body for lead in _WIDE))  # a pattern takes 10 ms a megabyte
    width = 7 if wide else 1 if ascii else 4
    values = _OBJECT_BYTES * _opened(body) + _VALUE_BYTES * body.count(b",")
    return width * len(body) + min(values, _VALUE_BYTES * limits.max_json_values)


def _opened(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{") + body.count(b":")


def converted(value: Any, type: Any, where: str, *, strict: bool = True) -> Any:
    """Converts ``value`` at ``where`` in a request to ``type``. Raises BadRequest naming the field.

    Without ``strict``, numbers and booleans may be texts. A null is handled as in :func:`decode`.
    """
    try:
        return msgspec.convert(value, type, strict=strict)
    except msgspec.ValidationError as error:
        refused = error
    try:
        if _NULL in str(refused):
            return msgspec.convert(without_nulls(value, type), type, strict=strict)
    except msgspec.ValidationError as error:
        refused = error
    raise _invalid_value(str(refused), type, where)


def decode_json(decoder: msgspec.json.Decoder[Request], body: bytes | str) -> Request:
    """Decodes a body by ``decoder``, with its errors, except that a null is handled as in :func:`decode`.

    A body is read twice only if it was refused for a null.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if _NULL not in str(error):
            raise
    return msgspec.convert(without_nulls(msgspec.json.decode(body), decoder.type), decoder.type, str_keys=True)


def without_nulls(value: Any, type: Any) -> Any:
    """Removes fields that are null where ``type`` has no null, as deep as ``type`` describes the value."""
    return _without_nulls(value, _type_info(type))


def _without_nulls(value: Any, kind: inspect.Type) -> Any:
    if not _holds_structs(kind):
        return value  # a long list of numbers is not gone through
    match kind:
        case inspect.Metadata():
            return _without_nulls(value, kind.type)
        case inspect.CollectionType() if isinstance(value, list):  # a list or the like
            return [_without_nulls(item, kind.item_type) for item in value]
        case inspect.DictType() if isinstance(value, dict):
            return {name: _without_nulls(item, kind.value_type) for name, item in value.items()}
        case inspect.UnionType():
            return reduce(_without_nulls, kind.types, value)  # each changes values of its own type only
        case inspect.StructType() if isinstance(value, dict):
            if kind.tag_field is not None and value.get(kind.tag_field) != kind.tag:
                return value
            fields = _fields_of(kind.cls)
            return {
                name: _without_nulls(item, fields[name]) if name in fields else item
                for name, item in value.items()
                if item is not None or name not in fields or _may_be_null(fields[name])
            }
        case _:
            return value


def _holds_structs(kind: inspect.Type) -> bool:
    match kind:
        case inspect.Metadata():
            return _holds_structs(kind.type)
        case inspect.CollectionType():
            return _holds_structs(kind.item_type)
        case inspect.DictType():
            return _holds_structs(kind.value_type)
        case inspect.UnionType():
            return any(map(_holds_structs, kind.types))
        case _:
            return isinstance(kind, inspect.StructType)


@cache
def _fields_of(struct: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    kind = _type_info(struct)
    assert isinstance(kind, inspect.StructType)
    return {field.encode_name: field.type for field in kind.fields}


def _may_be_null(kind: inspect.Type) -> bool:
    match kind:
        case inspect.UnionType():
            return any(map(_may_be_null, kind.types))
        case inspect.Metadata():
            return _may_be_null(kind.type)
        case _:
            return isinstance(kind, inspect.NoneType | inspect.AnyType | inspect.RawType)


def converted_form(fields: dict[str, Any], type: type[Request]) -> Request:
    """A form's fields as ``type``: all values are text. Raises BadRequest naming the field."""
    try:
        return msgspec.convert(fields, type, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error), type) from None


def _too_many_values(most: int, field: str | None) -> BadRequest:
    where = f"`{field}`" if field else "The JSON"
    return BadRequest(
        f"{where} holds too many values; a body's commas, and its colons and opening brackets eight times, those "
        f"within texts included, may come to {most}.",
        field,
        LIST_TOO_LONG,
    )


def _invalid_value(text: str, type: Any, where: str = "", what: str = "The body") -> BadRequest:
    """msgspec's error, for a value of ``type`` at ``where`` in the body."""
    match = _PATH.search(text)
    absent = _MISSING.search(text)
    if match is None and absent is None and not where:
        return BadRequest(f"{what} must be a JSON object: {_plain(text)}.")
    param = match[1].split("[...]")[0] if match else ""
    param = f"{where}{'' if param.startswith('[') else '.'}{param}" if where and param else where or param
    said = _plain(text[: match.start()] if match else text)
    if absent is not None:
        return missing(f"{param}.{absent[1]}" if param else absent[1])
    given = _NOT_AMONG.match(said)
    if match and given and (values := _allowed(_type_info(type), _STEP.findall(match[1]))):
        return wrong(param, f"is {given[1]}, expected one of {', '.join(values)}", "invalid_value")
    return BadRequest(f"`{param}`: {said}.", param or None, "invalid_value")


def _allowed(kind: inspect.Type, path: list[str]) -> tuple[str, ...]:
    """The values of the enumeration at ``path`` in ``kind``; none if alternatives of ``kind`` have different ones.
    A struct with ``ONLY_REFUSED`` is decoded for the sake of its error, and is no alternative for the client."""
    kinds = _alternatives(kind)
    if not path:
        return tuple(str(value) for each in kinds if isinstance(each, inspect.LiteralType) for value in each.values)
    step, rest = path[0], path[1:]
    found = {
        tuple(
            str(each.tag)
            for each in kinds
            if isinstance(each, inspect.StructType) and each.tag_field == step and not hasattr(each.cls, "ONLY_REFUSED")
        )
    }
    for each in kinds:
        match each:
            case inspect.CollectionType() if step.startswith("["):
                found.add(_allowed(each.item_type, rest))
            case inspect.DictType() if step.startswith("["):
                found.add(_allowed(each.value_type, rest))
            case inspect.StructType():
                found |= {_allowed(field.type, rest) for field in each.fields if field.encode_name == step}
    found.discard(())
    return found.pop() if len(found) == 1 else ()


def _alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    match kind:
        case inspect.Metadata():
            return _alternatives(kind.type)
        case inspect.UnionType():
            return tuple(each for member in kind.types for each in _alternatives(member))
        case _:
            return (kind,)


def _plain(text: str) -> str:
    """msgspec's sentence in JSON's words."""
    if len(text) > _MAX_SAID:  # it repeats the client's text
        text = text[:_MAX_SAID] + "…"
    text = text.replace("`", "").replace("Expected", "expected").replace("Object", "object")
    text = text.replace("Number out of range", "the number is out of range")
    text = re.sub(r"\bstr\b", "string", text)
    text = re.sub(r"\bint\b", "integer", text)
    text = re.sub(r"\bfloat\b", "number", text)
    text = re.sub(r"\bbool\b", "boolean", text)
    return text.replace(" | ", " or ")


def _malformed(text: str, body: bytes, what: str) -> BadRequest:
    """The error of a syntax error. NaN and Infinity, which JSON does not have, are named."""
    half = half_a_character(body) if "surrogate" in text or "utf-" in text or "truncated" in text else None
    if half is not None:
        return _undecodable(what, f"holds half a character (byte {half})", path_at(body, half))
    where = _BYTE.search(text)
    if where is None:
        return BadRequest(f"{what} is not valid JSON: it ends too early or holds an unfinished escape.")
    at = int(where[1])
    param = path_at(body, at)
    # The position may lie inside the word: the sign of -Infinity is read first.
    if any(_NOT_A_NUMBER.match(body, start) for start in (at, max(0, at - 1))):
        name = f"`{param}`" if param else what
        return BadRequest(f"{name}: NaN and Infinity are not numbers in JSON.", param, "invalid_value")
    return _undecodable(what, f"is not valid JSON: {text.removeprefix('JSON is malformed: ')}", param)


def _undecodable(what: str, fault: str, param: str | None) -> BadRequest:
    return BadRequest(f"{what} {fault}{f', in `{param}`' if param else ''}.", param)
