"""``/v1/uploads``: files in parts, in parallel and in any order."""

import contextlib
import hashlib
import time
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest, missing, wrong
from stentor.protocols.openai.uploads import (
    LIFETIME_SECONDS,
    MAX_PART_BYTES,
    MAX_PARTS,
    Upload,
    UploadComplete,
    UploadCreate,
    UploadPart,
    complete_decoder,
    create_decoder,
)

from ...middleware.auth import caller_of
from ...state.store_services import StoreServices
from ...storage import files
from ...storage import uploads as table
from ...storage.database import Database, StoreFailed
from ..common.described import Operation, Operations
from ..common.endpoint import TransferEndpoint, json_response, read_counted_body
from ..common.forms import too_large, upload_form
from .files import shown_file

if TYPE_CHECKING:
    import sqlite3

OPERATIONS: Final[Operations] = {
    "/v1/uploads": Operation("Begin a file that comes in parts", Upload, UploadCreate, writes_store=True),
    "/v1/uploads/{upload_id}/parts": Operation(
        "Add a part", UploadPart, takes_file=True, file_field="data", not_found=True
    ),
    "/v1/uploads/{upload_id}/complete": Operation(
        "Make a file of the parts", Upload, UploadComplete, not_found=True, writes_store=True
    ),
    "/v1/uploads/{upload_id}/cancel": Operation("Drop the parts", Upload, not_found=True),
}
_MOST_FIELDS: Final = 2


def routes(services: StoreServices) -> list[Route]:
    one, admission = "/v1/uploads/{upload_id}", services.admission
    return [
        Route("/v1/uploads", partial(create, services), methods=["POST"]),
        Route(f"{one}/parts", TransferEndpoint(admission, partial(add_part, services)), methods=["POST"]),
        Route(f"{one}/complete", TransferEndpoint(admission, partial(complete, services)), methods=["POST"]),
        Route(f"{one}/cancel", partial(cancel, services.store), methods=["POST"]),
    ]


async def create(services: StoreServices, request: Request) -> Response:
    body = decode(create_decoder, await read_counted_body(request, services.admission), services.limits)
    body.check()
    most = services.config.max_file_bytes
    if body.bytes > most:
        raise too_large(most, "bytes")
    now = int(time.time())
    seconds = None if body.expires_after is None else body.expires_after.seconds
    upload = table.StoredUpload(
        f"upload_{uuid.uuid4().hex}",
        now,
        now + LIFETIME_SECONDS,
        body.bytes,
        body.purpose,
        body.filename,
        seconds,
        None,
    )
    await services.store.write(lambda db: table.insert(db, caller_of(request.scope).owner, upload))
    return json_response(_shown(upload))


async def add_part(services: StoreServices, request: Request) -> Response:
    store, names = services.store, _names(request)
    pending = await store.write(partial(_pending, *names))
    most = min(MAX_PART_BYTES, pending.size)
    async with contextlib.AsyncExitStack() as stack:
        share = stack.enter_context(services.admission.memory.share())
        form = await stack.enter_async_context(
            upload_form(services.limits, request, share, most, _MOST_FIELDS, "`data`", "data")
        )
        given = form.get("data")
        if not isinstance(given, UploadFile):
            raise missing("data")
        if (given.size or 0) > most:
            raise too_large(most, "data")
        part = table.StoredPart(f"part_{uuid.uuid4().hex}", given.size or 0)
        await _keep(store, names, part, given)
    return json_response(UploadPart(part.id, pending.id, int(time.time())))


async def _keep(store: Database, names: tuple[str, str], part: table.StoredPart, given: UploadFile) -> None:
    def begin(db: "sqlite3.Connection") -> None:
        upload = _pending(*names, db)
        count, size = table.extent(db, upload.id)
        if count >= MAX_PARTS:
            raise wrong("data", f"would be part {count + 1}; an upload has {MAX_PARTS} at most", "too_many_parts")
        if size + part.size > upload.size:
            raise wrong(
                "data",
                f"has {part.size} bytes; with the {size} before it that is more than the {upload.size} of the upload",
                "file_too_large",
            )
        table.begin_part(db, upload.id, part)

    await store.write(begin)
    try:
        place = 0
        while data := await given.read(files.PART_BYTES):
            await store.write(partial(table.append, part=part.id, place=place, data=data))
            place += 1
        if not await store.write(partial(table.finish_part, part=part.id)):
            raise _missing(names[1])
    except BaseException:
        with anyio.CancelScope(shield=True), contextlib.suppress(StoreFailed):  # it would hide the original error
            await store.delete(partial(table.drop_part, part=part.id))
        raise


async def complete(services: StoreServices, request: Request) -> Response:
    body = decode(complete_decoder, await read_counted_body(request, services.admission), services.limits)
    body.check()
    store, (owner, name), caller = services.store, _names(request), caller_of(request.scope)
    file = f"file-{uuid.uuid4().hex}"

    def begin(db: "sqlite3.Connection") -> tuple[table.StoredUpload, list[table.StoredPart]]:
        upload = _found(owner, name, db)
        if upload.file is not None:
            return upload, []
        parts = table.parts(db, name, body.part_ids)
        if len(parts) < len(body.part_ids):
            known = {part.id for part in parts}
            unknown = next(part for part in body.part_ids if part not in known)
            raise wrong("part_ids", f"holds `{unknown[:80]}`, which is no part of this upload", "part_not_found")
        size = sum(part.size for part in parts)
        if size != upload.size:
            raise wrong("part_ids", f"makes {size} bytes; the upload was to have {upload.size}", "size_mismatch")
        files.begin(db, owner, file, upload.purpose, upload.name, size=size, seconds=upload.seconds)
        return upload, parts

    upload, parts = await store.write(begin, admitted=owner if caller.salt else "")
    if upload.file is None:
        try:
            await _join(store, file, parts, body.md5)
            await store.write(partial(_finish, owner, name, file))
        except BaseException:
            with anyio.CancelScope(shield=True), contextlib.suppress(StoreFailed):
                await store.delete(partial(files.delete, owner=owner, file=file))
            raise
    done = await store.read(partial(_completed, owner, name))
    return json_response(done)


async def _join(store: Database, file: str, parts: list[table.StoredPart], md5: str | None) -> None:
    """Writes the parts into the file. Raises BadRequest if they differ from the client's declaration."""
    digest = hashlib.md5(usedforsecurity=False)
    waiting, place = bytearray(), 0
    async for data in _data(store, parts):
        digest.update(data)
        waiting += data
        while len(waiting) >= files.PART_BYTES:
            await store.write(partial(files.append, file=file, place=place, data=bytes(waiting[: files.PART_BYTES])))
            del waiting[: files.PART_BYTES]
            place += 1
    if waiting:
        await store.write(partial(files.append, file=file, place=place, data=bytes(waiting)))
    if md5 is not None and md5.lower() != digest.hexdigest():
        raise wrong("md5", f"is not that of the parts in this order, {digest.hexdigest()}", "md5_mismatch")


async def _data(store: Database, parts: list[table.StoredPart]) -> AsyncIterator[bytes]:
    for part in parts:
        place = size = 0
        while data := await store.read(partial(table.data, part=part.id, place=place)):
            yield data
            place, size = place + 1, size + len(data)
        if size < part.size:
            raise BadRequest(
                "The upload was cancelled or completed meanwhile.", "upload_id", "upload_ended", status=409
            )


def _finish(owner: str, name: str, file: str, db: "sqlite3.Connection") -> None:
    """In one transaction, adds the file and deletes the parts."""
    upload = _pending(owner, name, db)
    if files.finish(db, file) is None:
        raise BadRequest("The file was deleted while it was being made.", "upload_id", "file_not_found", status=409)
    table.complete(db, upload.id, file)


def _completed(owner: str, name: str, db: "sqlite3.Connection") -> Upload:
    upload = _found(owner, name, db)
    file = None if upload.file is None else files.find(db, owner, upload.file)
    if file is None:
        raise BadRequest("The file of this upload has been deleted.", "upload_id", "file_not_found", status=404)
    return _shown(upload, file)


async def cancel(store: Database, request: Request) -> Response:
    names = _names(request)

    def work(db: "sqlite3.Connection") -> table.StoredUpload:
        upload = _pending(*names, db)
        table.delete(db, upload.id)
        return upload

    upload = await store.delete(work)
    return json_response(_shown(upload, cancelled=True))


def _shown(upload: table.StoredUpload, file: files.StoredFile | None = None, *, cancelled: bool = False) -> Upload:
    return Upload(
        upload.id,
        upload.size,
        upload.created,
        upload.expires_at,
        upload.name,
        upload.purpose,
        "cancelled" if cancelled else "pending" if file is None else "completed",
        None if file is None else shown_file(file),
    )


def _names(request: Request) -> tuple[str, str]:
    return caller_of(request.scope).owner, request.path_params["upload_id"]


def _found(owner: str, name: str, db: "sqlite3.Connection") -> table.StoredUpload:
    upload = table.find(db, owner, name)
    if upload is None:
        raise _missing(name)
    return upload


def _pending(owner: str, name: str, db: "sqlite3.Connection") -> table.StoredUpload:
    upload = _found(owner, name, db)
    if upload.file is not None:
        raise BadRequest("The upload has been completed.", "upload_id", "upload_completed")
    return upload


def _missing(name: str) -> BadRequest:
    message = f"There is no upload `{name[:80]}` here: it was cancelled, its hour has passed, or it never was."
    return BadRequest(message, "upload_id", "upload_not_found", 404)
