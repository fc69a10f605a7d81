"""``/v1/files`` as Anthropic has it."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class FileLifetime(msgspec.Struct, frozen=True):
    """The lifetime fields of a form."""

    expires_in_seconds: Annotated[int, Meta(ge=3600, le=7_776_000)] | None = None


class FileMetadata(msgspec.Struct, frozen=True):
    """Times as RFC 3339 has them."""

    id: str
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str | None = None
    downloadable: bool = True
    type: Literal["file"] = "file"


class FilePage(msgspec.Struct, frozen=True):
    data: list[FileMetadata]
    next_page: str | None = None


class FileMetadataDeleted(msgspec.Struct, frozen=True):
    id: str
    type: Literal["file_deleted"] = "file_deleted"
