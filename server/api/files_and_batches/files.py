"""``/v1/files``."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import anyio
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stentor.protocols.anthropic.files import FileMetadataDeleted
from stentor.protocols.common.decoding import converted
from stentor.protocols.common.errors import BadRequest, missing, wrong
from stentor.protocols.openai.batches import MAX_NAME_CHARS, PURPOSES, UPLOADED, File, FileDeleted, FileForm, FileList
from stentor.protocols.openai.uploads import ExpiresAfter

from ...common.keys import Caller
from ...middleware.auth import caller_of
from ...state.store_services import StoreServices
from ...storage import files
from ...storage.database import Database, StoreFailed
from ..common.described import Operation, Operations
from ..common.endpoint import TransferEndpoint, json_response, wants_anthropic
from ..common.forms import too_large, upload_form
from ..common.query import limit_of, order_of, page_of
from . import message_files

OPERATIONS: Final[Operations] = {
    "/v1/files": Operation(
        "Upload a file; in Anthropic's shape with the header `anthropic-version`, as all of these",
        File,
        takes_file=True,
        form=FileForm,
    ),
    "GET /v1/files": Operation("List the caller's files", FileList),
    "/v1/files/{id}": Operation("Describe a file", File, not_found=True),
    "DELETE /v1/files/{id}": Operation("Delete a file", FileDeleted, not_found=True),
    "/v1/files/{id}/content": Operation(
        "Download the content of a file", str, media_type="application/octet-stream", not_found=True
    ),
}

_MOST_FIELDS: Final = 8
_MOST_LISTED: Final = 10_000


def routes(services: StoreServices) -> list[Route]:
    admission, store = services.admission, services.store
    return [
        Route("/v1/files", TransferEndpoint(admission, partial(upload, services)), methods=["POST"]),
        Route("/v1/files", partial(listed, store), methods=["GET"]),
        Route("/v1/files/{id}", partial(found, store), methods=["GET"]),
        Route("/v1/files/{id}", partial(deleted, store), methods=["DELETE"]),
        Route("/v1/files/{id}/content", TransferEndpoint(admission, partial(content, store)), methods=["GET"]),
    ]


async def upload(services: StoreServices, request: Request) -> Response:
    wanted, most = "`file` and `purpose`", services.config.max_file_bytes
    async with contextlib.AsyncExitStack() as stack:
        share = stack.enter_context(services.admission.memory.share())
        form = await stack.enter_async_context(upload_form(services.limits, request, share, most, _MOST_FIELDS, wanted))
        given, purpose = form.get("file"), form.get("purpose")
        if not isinstance(given, UploadFile):
            raise missing("file")
        name = given.filename or "file"
        if wants_anthropic(request):
            purpose, seconds = message_files.PURPOSE, message_files.lifetime_of(form)
            name = name.rpartition("/")[2] or "file"
        elif purpose not in UPLOADED:
            raise wrong("purpose", f"must be one of {', '.join(UPLOADED)}", "invalid_value")
        else:
            seconds = _lifetime(form)
        if (given.size or 0) > most:
            raise too_large(most)
        # some charsets have halves of characters
        name = name[:MAX_NAME_CHARS].encode("utf-8", "replace").decode()
        stored = await keep_file(services.store, caller_of(request.scope), given, str(purpose), name, seconds)
    return _answer(request, stored)


def _answer(request: Request, file: files.StoredFile) -> Response:
    return json_response(message_files.metadata_of(file) if wants_anthropic(request) else shown_file(file))


def _lifetime(form: FormData) -> int | None:
    """The form's ``expires_after``, as the SDK writes it. Raises BadRequest."""
    given = {name: form.get(f"expires_after[{name}]") for name in ("anchor", "seconds")}
    said = {name: value for name, value in given.items() if value is not None}
    if not said:
        return None
    found: ExpiresAfter = converted(said, ExpiresAfter, "expires_after", strict=False)
    return found.seconds


async def keep_file(
    store: Database, caller: Caller, given: UploadFile, purpose: str, name: str, seconds: int | None = None
) -> files.StoredFile:
    """Stores a client's file, which expires after ``seconds``. Raises BadRequest and StoreFailed."""
    file, owner, place = f"file-{uuid.uuid4().hex}", caller.owner, 0
    begin = partial(
        files.begin, owner=owner, file=file, purpose=purpose, name=name, size=given.size or 0, seconds=seconds
    )
    await store.write(begin, admitted=owner if caller.salt else "")
    try:
        while part := await given.read(files.PART_BYTES):
            await store.write(partial(files.append, file=file, place=place, data=part))
            place += 1
    except BaseException:
        with anyio.CancelScope(shield=True), contextlib.suppress(StoreFailed):  # it would hide the original error
            await store.delete(partial(files.delete, owner=owner, file=file))
        raise
    stored = await store.write(partial(files.finish, file=file))
    if stored is None:
        raise BadRequest("The file was deleted while it was being kept.", "file", "file_not_found", status=409)
    return stored


async def listed(store: Database, request: Request) -> Response:
    if wants_anthropic(request):
        return json_response(await message_files.listed(store, request))
    limit = limit_of(request, _MOST_LISTED, _MOST_LISTED)
    order = order_of(request)
    purpose = request.query_params.get("purpose")
    if purpose is not None and purpose not in PURPOSES:
        raise wrong("purpose", f"must be one of {', '.join(PURPOSES)}", "invalid_value")
    rows = await store.read(
        partial(
            files.listed,
            owner=caller_of(request.scope).owner,
            limit=limit + 1,
            after=request.query_params.get("after"),
            purposes=() if purpose is None else (purpose,),
            newest_first=order == "desc",
        )
    )
    if rows is None:
        raise wrong("after", "names no file", "invalid_value")
    shown, more = page_of([shown_file(row) for row in rows], limit)
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return json_response(FileList(shown, first, last, more))


async def found(store: Database, request: Request) -> Response:
    return _answer(request, await _find(store, request))


async def deleted(store: Database, request: Request) -> Response:
    file = request.path_params["id"]
    if not await store.delete(partial(files.delete, owner=caller_of(request.scope).owner, file=file)):
        raise _missing()
    return json_response(FileMetadataDeleted(file) if wants_anthropic(request) else FileDeleted(file))


async def content(store: Database, request: Request) -> Response:
    file = await _find(store, request)
    with contextlib.suppress(StoreFailed):  # a full disk can still be read
        await store.write(lambda db: files.touch(db, file.id))

    async def parts() -> AsyncIterator[bytes]:
        place = 0
        while part := await store.read(partial(files.part, file=file.id, place=place)):
            yield part
            place += 1

    headers = {"content-length": str(file.size), "x-content-type-options": "nosniff"}
    return StreamingResponse(parts(), headers=headers, media_type="application/octet-stream")


async def _find(store: Database, request: Request) -> files.StoredFile:
    owner, name = caller_of(request.scope).owner, request.path_params["id"]
    file = await store.read(partial(files.find, owner=owner, file=name))
    if file is None:
        raise _missing()
    return file


def shown_file(file: files.StoredFile) -> File:
    """The file as clients see it."""
    return File(file.id, file.size, file.created, file.name, file.purpose, expires_at=file.expires_at)


def _missing() -> BadRequest:
    return BadRequest("There is no file of this name.", "id", "file_not_found", status=404)
