"""Stored chat completions: updates, deletion, lists."""

from typing import Any, Final

import msgspec

from .chat import ChatResponse
from .metadata import Metadata, check_metadata


class ChatUpdate(msgspec.Struct):
    metadata: Metadata | None

    def check(self) -> None:
        """Raises BadRequest."""
        check_metadata(self.metadata)


class StoredChatResponse(ChatResponse, frozen=True, kw_only=True):
    metadata: Metadata


class ChatDeleted(msgspec.Struct, frozen=True, tag_field="object", tag="chat.completion.deleted"):
    id: str
    deleted: bool = True


class ChatList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    data: list[StoredChatResponse]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredMessages(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    data: list[dict[str, Any]]
    """Messages as they were sent, each with an ``id``; ``content_parts`` has an array of parts."""
    first_id: str | None
    last_id: str | None
    has_more: bool


update_decoder: Final = msgspec.json.Decoder(ChatUpdate)
