"""``/v1/files``, and ``/v1/batches``: many requests in a file, answered when there is room for them."""

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from ..common.errors import wrong

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
WINDOW_SECONDS: Final = 86400
MAX_REQUESTS: Final = 50_000
"""Lines of one file, as OpenAI has it."""
MAX_ERRORS: Final = 100
"""Told of one file that cannot be worked on."""
_MAX_METADATA: Final = 16


class BatchCreate(msgspec.Struct):
    input_file_id: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Endpoint
    completion_window: Literal["24h"] = "24h"
    metadata: dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]] | None = None
    output_expires_after: dict[str, str | int] | None = None

    def check(self) -> None:
        """Raises BadRequest."""
        if self.metadata is not None and len(self.metadata) > _MAX_METADATA:
            raise wrong("metadata", f"has {len(self.metadata)} entries; at most 16 are allowed")


class BatchError(msgspec.Struct, frozen=True):
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct, frozen=True):
    data: list[BatchError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, frozen=True, tag_field="object", tag="batch"):
    """Times are Unix seconds."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Status
    created_at: int
    expires_at: int
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None
    model: str | None = None


class BatchList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


create_decoder: Final = msgspec.json.Decoder(BatchCreate)
batch_decoder: Final = msgspec.json.Decoder(Batch)


Purpose = Literal["batch", "batch_output", "user_data", "vision"]
UPLOADED: Final = ("batch", "user_data", "vision")
"""Purposes of uploads; files of other purposes would have no use here."""
PURPOSES: Final = get_args(Purpose)
MAX_NAME_CHARS: Final = 512


class FileForm(msgspec.Struct):
    """Beside the file; also ``expires_after[anchor]`` and ``expires_after[seconds]``."""

    purpose: str


class File(msgspec.Struct, frozen=True, tag_field="object", tag="file"):
    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: int | None = None
    status_details: str | None = None


class FileList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, frozen=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
