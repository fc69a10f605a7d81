"""Items of clients, checked: allowed contents by role."""

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta

from ...common.bounds import chars_at_most, total_chars_at_most
from ...common.decoding import converted
from ...common.errors import missing, refused, wrong
from ...common.limits import MAX_NAME_LENGTH, Limits
from ..media_parts import check_detail, check_url
from ..sampling import not_served
from .client import Id
from .items import Content, FunctionCallItem, FunctionCallOutputItem, Item, MessageItem, Role

MAX_PARTS: Final = 256
_MAX_ID: Final = 128

_TYPES: Final[dict[Role, tuple[str, ...]]] = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
}
ItemId = Annotated[str, Meta(min_length=1, max_length=_MAX_ID)]
CallId = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]
_MCP: Final = ("mcp_approval_response", "mcp_list_tools", "mcp_call", "mcp_approval_request")


class _Message(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    role: Role
    content: list[Any]
    id: ItemId | None = None


class _Call(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    name: CallId
    arguments: str
    call_id: CallId | None = None
    id: ItemId | None = None


class _CallOutput(msgspec.Struct, frozen=True, tag_field="type", tag="function_call_output"):
    call_id: CallId
    output: str
    id: ItemId | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    audio: str | None = None
    transcript: str | None = None
    image_url: str | None = None
    detail: str | None = None


class _Reference(msgspec.Struct, frozen=True):
    id: Id
    type: Literal["item_reference"]


NO_IMAGES: Final[Mapping[int, str]] = {}


class GivenItem(NamedTuple):
    """``item`` has an empty id where the client gave none."""

    item: Item
    audio: bytes | None
    """Audio of its one audio part."""
    images: Mapping[int, str] = NO_IMAGES
    """URLs of its pictures, by the places of their parts."""


def read_item(value: dict[str, Any], where: str, limits: Limits) -> GivenItem:
    """Raises BadRequest naming the field below ``where``."""
    if value.get("type") in _MCP:
        raise not_served(f"{where}.type", f"`{where}.type`: an item of type `{value['type']}`")
    read = converted(value, _Message | _Call | _CallOutput, where)
    match read:
        case _Message():
            return _message(read, where, limits)
        case _Call():
            chars_at_most(read.arguments, limits.max_prompt_chars, f"{where}.arguments")
            call = FunctionCallItem(read.id or "", read.call_id or "", read.name, read.arguments)
            return GivenItem(call, None)
        case _:
            chars_at_most(read.output, limits.max_prompt_chars, f"{where}.output")
            return GivenItem(FunctionCallOutputItem(read.id or "", read.call_id, read.output), None)


def read_reference(value: dict[str, Any], where: str) -> str | None:
    """The id of an item reference; None for an item itself. Raises BadRequest."""
    if value.get("type") != "item_reference":
        return None
    reference: _Reference = converted(value, _Reference, where)
    return reference.id


def _message(read: _Message, where: str, limits: Limits) -> GivenItem:
    if not read.content or len(read.content) > MAX_PARTS:
        raise wrong(f"{where}.content", f"must hold 1 to {MAX_PARTS} parts", "invalid_value")
    content, audio, length = [], None, 0
    images = {}
    for index, raw in enumerate(read.content):
        place = f"{where}.content[{index}]"
        given = converted(raw, _Part, place)
        part, found_audio = _part(given, read.role, place)
        if given.type == "input_image" and given.image_url is not None:
            images[index] = given.image_url
        if found_audio is not None:
            if audio is not None:
                raise refused(place, "a message may have one part of audio", "invalid_value")
            audio = found_audio
        length += len(part.text or "") + len(part.transcript or "")
        content.append(part)
    total_chars_at_most(length, limits.max_prompt_chars, f"{where}.content")
    return GivenItem(MessageItem(read.id or "", read.role, content), audio, images)


def _part(given: _Part, role: Role, where: str) -> tuple[Content, bytes | None]:
    kind = given.type
    if kind not in _TYPES[role]:
        expected = " or ".join(f"`{name}`" for name in _TYPES[role])
        raise wrong(f"{where}.type", f"must be {expected} in a message of role `{role}`", "invalid_value")
    if kind == "input_image":
        if given.image_url is None:
            raise missing(f"{where}.image_url")
        check_url(given.image_url, f"{where}.image_url")
        check_detail(given.detail, f"{where}.detail")
        return Content("input_image", transcript=UNSET, detail=given.detail or "auto"), None
    if kind == "input_audio":
        if given.audio is None:
            raise missing(f"{where}.audio")
        # an item with the client's transcript needs no transcription
        audio = None if given.transcript else decode_audio(given.audio, f"{where}.audio")
        return Content("input_audio", transcript=given.transcript or None), audio
    if kind == "output_audio":
        if given.transcript is None:
            raise missing(f"{where}.transcript")
        return Content("output_audio", transcript=given.transcript), None
    if given.text is None:
        raise missing(f"{where}.text")
    return Content(kind, text=given.text, transcript=UNSET), None  # type: ignore[arg-type]  # one of those that are left


MAX_AUDIO: Final = 15 << 20
"""Bytes of audio in one event, at most."""


def decode_audio(text: str, field: str) -> bytes:
    """Raises BadRequest for invalid base64, and for more than one event's audio."""
    if len(text) * 3 // 4 > MAX_AUDIO + 2:
        raise wrong(
            field, f"is longer than the {MAX_AUDIO >> 20} MiB that one event may bring", "string_above_max_length"
        )
    try:
        return binascii.a2b_base64(text, strict_mode=True) if text else b""
    except (binascii.Error, ValueError):
        raise wrong(field, "must be base64", "invalid_value") from None


def encode_audio(audio: bytes) -> str:
    return base64.b64encode(audio).decode()
