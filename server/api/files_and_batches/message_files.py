"""``/v1/files`` in Anthropic's words: the same files as OpenAI's, but for those of batches, which lists leave out."""

import mimetypes
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.datastructures import FormData
from starlette.requests import Request

from stentor.protocols.anthropic.files import FileLifetime, FileMetadata, FilePage
from stentor.protocols.anthropic.objects import time_text
from stentor.protocols.common.decoding import converted_form
from stentor.protocols.common.errors import wrong

from ...middleware.auth import caller_of
from ...storage import files
from ...storage.database import Database
from ..common.query import limit_of, page_of

if TYPE_CHECKING:
    import sqlite3

PURPOSE: Final = "user_data"
"""Purpose of files without one."""
_SHOWN: Final = (PURPOSE, "vision")
_PAGE: Final = "page_"
_LISTED: Final = 20
_MOST_LISTED: Final = 1000
_MOST_IDS: Final = 100


def lifetime_of(form: FormData) -> int | None:
    """Lifetime of the file in seconds. Raises BadRequest."""
    given = form.get("expires_in_seconds")
    fields = {} if given is None else {"expires_in_seconds": given}
    return converted_form(fields, FileLifetime).expires_in_seconds


def metadata_of(file: files.StoredFile) -> FileMetadata:
    return FileMetadata(
        id=file.id,
        filename=file.name,
        mime_type=mimetypes.guess_type(file.name)[0] or "application/octet-stream",
        size_bytes=file.size,
        created_at=time_text(file.created),
        expires_at=None if file.expires_at is None else time_text(file.expires_at),
    )


async def listed(store: Database, request: Request) -> FilePage:
    """Newest first. Raises BadRequest."""
    owner, query = caller_of(request.scope).owner, request.query_params
    if names := query.getlist("ids[]") or query.getlist("ids"):
        if len(names) > _MOST_IDS:
            raise wrong("ids", f"has {len(names)} entries; at most {_MOST_IDS} are allowed")
        return FilePage([metadata_of(file) for file in await store.read(partial(_named, owner, names))])
    if "scope_id" in query:  # nothing here belongs to a session
        return FilePage([])
    limit, page = limit_of(request, _LISTED, _MOST_LISTED), query.get("page")
    rows = await store.read(
        partial(
            files.listed,
            owner=owner,
            limit=limit + 1,
            after=None if page is None else page.removeprefix(_PAGE),
            purposes=_SHOWN,
            newest_first=True,
        )
    )
    if rows is None:
        raise wrong("page", "is none that a list has named, or its file is gone", "invalid_value")
    shown, more = page_of([metadata_of(row) for row in rows], limit)
    return FilePage(shown, f"{_PAGE}{shown[-1].id}" if more else None)


def _named(owner: str, names: list[str], db: "sqlite3.Connection") -> list[files.StoredFile]:
    found = (files.find(db, owner, name) for name in dict.fromkeys(names))
    return [file for file in found if file is not None]
