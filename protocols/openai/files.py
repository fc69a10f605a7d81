"""``/v1/files``: what clients bring for batches, and what they get of them."""

from typing import Final, Literal, get_args

import msgspec

Purpose = Literal["batch", "batch_output", "user_data"]
UPLOADED: Final = ("batch", "user_data")
"""What a client may bring; nothing here would use files of other purposes."""
PURPOSES: Final = get_args(Purpose)
MAX_NAME_CHARS: Final = 512


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
