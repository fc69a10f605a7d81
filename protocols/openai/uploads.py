"""``/v1/uploads``: a file that comes in parts."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ..common.bounds import items_at_most
from ..common.errors import wrong
from .batches import MAX_NAME_CHARS, UPLOADED, File

LIFETIME_SECONDS: Final = 3600
"""Lifetime of an upload that is not completed."""
MAX_PARTS: Final = 1024
MAX_PART_BYTES: Final = 64 << 20
_MAX_TYPE_CHARS: Final = 256


class ExpiresAfter(msgspec.Struct, frozen=True):
    seconds: Annotated[int, Meta(ge=3600, le=2592000)]
    anchor: Literal["created_at"] = "created_at"


class UploadCreate(msgspec.Struct):
    filename: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
    purpose: str
    bytes: Annotated[int, Meta(ge=1)]
    mime_type: Annotated[str, Meta(max_length=_MAX_TYPE_CHARS)] = ""
    expires_after: ExpiresAfter | None = None

    def check(self) -> None:
        """Raises BadRequest."""
        if self.purpose not in UPLOADED:
            raise wrong("purpose", f"must be one of {', '.join(UPLOADED)}", "invalid_value")


class UploadComplete(msgspec.Struct):
    part_ids: Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(min_length=1)]
    md5: Annotated[str, Meta(max_length=64)] | None = None

    def check(self) -> None:
        """Raises BadRequest."""
        items_at_most(self.part_ids, MAX_PARTS, "part_ids")
        if len(set(self.part_ids)) < len(self.part_ids):
            raise wrong("part_ids", "names a part twice", "invalid_value")


class Upload(msgspec.Struct, frozen=True, tag_field="object", tag="upload"):
    """Times are Unix seconds."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled"]
    file: File | None = None


class UploadPart(msgspec.Struct, frozen=True, tag_field="object", tag="upload.part"):
    id: str
    upload_id: str
    created_at: int


create_decoder: Final = msgspec.json.Decoder(UploadCreate)
complete_decoder: Final = msgspec.json.Decoder(UploadComplete)
