"""Items of a conversation, as sent to clients; :mod:`.given` checks those of clients."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

ItemStatus = Literal["completed", "incomplete", "in_progress"]
Role = Literal["system", "user", "assistant"]


class Content(msgspec.Struct):
    """One part of a message. Which fields it has, its ``type`` says."""

    type: Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]
    text: str | UnsetType = UNSET
    transcript: str | UnsetType | None = UNSET
    audio: str | UnsetType = UNSET
    """Base64; only where the item is retrieved."""
    image_url: str | UnsetType = UNSET
    """Likewise."""
    detail: str | UnsetType = UNSET


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    role: Role
    content: list[Content]
    status: ItemStatus = "completed"
    object: Literal["realtime.item"] = "realtime.item"


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: ItemStatus = "completed"
    object: Literal["realtime.item"] = "realtime.item"


class FunctionCallOutputItem(msgspec.Struct, tag_field="type", tag="function_call_output"):
    id: str
    call_id: str
    output: str
    status: ItemStatus = "completed"
    object: Literal["realtime.item"] = "realtime.item"


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem
