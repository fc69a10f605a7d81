"""``/v1/conversations``: items that outlive the responses that used them."""

from typing import Any, Final, Literal

import msgspec

from ..metadata import Metadata

MAX_ITEMS_AT_ONCE: Final = 20
"""OpenAI's limit for items that a client adds."""


class ConversationCreate(msgspec.Struct):
    items: list[dict[str, Any]] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(msgspec.Struct):
    metadata: Metadata | None


class ItemsCreate(msgspec.Struct):
    items: list[dict[str, Any]]


class Conversation(msgspec.Struct, frozen=True):
    id: str
    created_at: int
    metadata: Metadata
    object: Literal["conversation"] = "conversation"


class ConversationDeleted(msgspec.Struct, frozen=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


create_decoder: Final = msgspec.json.Decoder(ConversationCreate)
update_decoder: Final = msgspec.json.Decoder(ConversationUpdate)
items_decoder: Final = msgspec.json.Decoder(ItemsCreate)
