"""``/v1/messages/batches``: many requests at once, answered when there is room for them."""

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..common.errors import wrong

MAX_REQUESTS: Final = 50_000
"""Equals the limit of OpenAI's batch files: both are processed alike."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")


class BatchedMessage(msgspec.Struct, frozen=True):
    custom_id: Annotated[str, Meta(min_length=1, max_length=64)]
    params: dict[str, Any]
    """A request to ``/v1/messages``; its errors are reported in its result."""


class MessageBatchCreate(msgspec.Struct):
    requests: Annotated[list[BatchedMessage], Meta(min_length=1)]

    def check(self) -> None:
        """Raises BadRequest."""
        if len(self.requests) > MAX_REQUESTS:
            raise wrong("requests", f"has {len(self.requests)} entries; at most {MAX_REQUESTS} are allowed")
        names: set[str] = set()
        for index, each in enumerate(self.requests):
            if not _NAME.fullmatch(each.custom_id):
                raise wrong(
                    f"requests[{index}].custom_id", "must have letters, digits, `_` and `-` alone", "invalid_value"
                )
            if each.custom_id in names:
                raise wrong(f"requests[{index}].custom_id", "stands in an earlier request")
            names.add(each.custom_id)
            if each.params.get("stream"):
                raise wrong(f"requests[{index}].params.stream", "must be false: the answers of a batch are whole")


class MessageRequestCounts(msgspec.Struct, frozen=True):
    """Until the batch has ended all are ``processing``."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, frozen=True):
    """Times as RFC 3339 has them."""

    id: str
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageRequestCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    results_url: str | None
    """Relative to the server, which does not know the client's host name and scheme for it."""
    archived_at: str | None = None
    type: Literal["message_batch"] = "message_batch"


class MessageBatchPage(msgspec.Struct, frozen=True):
    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageBatchDeleted(msgspec.Struct, frozen=True):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


class MessageResult(msgspec.Struct, frozen=True):
    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: Any | UnsetType = UNSET
    error: Any | UnsetType = UNSET


class MessageBatchResult(msgspec.Struct, frozen=True):
    custom_id: str
    result: MessageResult


create_decoder: Final = msgspec.json.Decoder(MessageBatchCreate)
