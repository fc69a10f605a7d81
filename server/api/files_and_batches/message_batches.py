"""``/v1/messages/batches``: Anthropic's batches over those of OpenAI.

Requests are stored in a file, and the same runner answers them; results are read from its files.
"""

import contextlib
import io
import time
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stentor.protocols.anthropic.batches import (
    MessageBatch,
    MessageBatchCreate,
    MessageBatchDeleted,
    MessageBatchPage,
    MessageBatchResult,
    MessageRequestCounts,
    MessageResult,
    create_decoder,
)
from stentor.protocols.anthropic.errors import MessageError, MessageErrorResponse
from stentor.protocols.anthropic.objects import time_text
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest, wrong
from stentor.protocols.openai.batches import WINDOW_SECONDS, Batch, RequestCounts, batch_decoder

from ...batches.input import lines, part_reader
from ...batches.lines import MAX_LINE_BYTES, BatchError, BatchRequest
from ...batches.runner import BatchRunner
from ...http.error_shapes import ANTHROPIC
from ...middleware.auth import caller_of
from ...overload.memory_budget import MemoryBudget
from ...state.store_services import StoreServices
from ...storage import batches as table
from ...storage import files
from ...storage.database import Database, StoreFailed
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, read_body
from ..common.query import limit_of, page_of
from .files import keep_file

if TYPE_CHECKING:
    import sqlite3

_ROOT: Final = "/v1/messages/batches"
_ONE: Final = f"{_ROOT}/{{message_batch_id}}"
OPERATIONS: Final[Operations] = {
    _ROOT: Operation(
        "Create a batch of messages (Anthropic's Message Batches API)",
        MessageBatch,
        MessageBatchCreate,
        writes_store=True,
        errors=ANTHROPIC,
    ),
    f"GET {_ROOT}": Operation("List the caller's batches of messages", MessageBatchPage, errors=ANTHROPIC),
    _ONE: Operation("Describe a batch of messages", MessageBatch, not_found=True, errors=ANTHROPIC),
    f"DELETE {_ONE}": Operation(
        "Delete a batch of messages that has ended, and its results",
        MessageBatchDeleted,
        not_found=True,
        errors=ANTHROPIC,
    ),
    f"{_ONE}/cancel": Operation(
        "Cancel a batch of messages; answers so far are kept", MessageBatch, not_found=True, errors=ANTHROPIC
    ),
    f"{_ONE}/results": Operation(
        "The results of a batch of messages, a line of JSON each",
        str,
        media_type="application/x-jsonl",
        not_found=True,
        errors=ANTHROPIC,
    ),
}
PREFIX: Final = "msgbatch_"
"""Prefix of these batches' ids."""
_LISTED: Final = 20
_MOST_LISTED: Final = 1000
_LINE_FACTOR: Final = 3
"""Memory factor of a line of results: as read, decoded, and written."""


class _Answer(msgspec.Struct):
    body: msgspec.Raw


class _Line(msgspec.Struct):
    """One of a file of answers."""

    custom_id: str
    response: _Answer | None = None
    error: BatchError | None = None


class _Named(msgspec.Struct):
    custom_id: str


_line_decoder: Final = msgspec.json.Decoder(_Line)
_named_decoder: Final = msgspec.json.Decoder(_Named)


def routes(services: StoreServices) -> list[Route]:
    return [
        Route(_ROOT, partial(create, services), methods=["POST"]),
        Route(_ROOT, partial(listed, services.store), methods=["GET"]),
        Route(_ONE, partial(retrieve, services.store), methods=["GET"]),
        Route(_ONE, partial(delete, services.store), methods=["DELETE"]),
        Route(f"{_ONE}/cancel", partial(cancel, services.batches), methods=["POST"]),
        Route(f"{_ONE}/results", partial(results, services), methods=["GET"]),
    ]


async def create(services: StoreServices, request: Request) -> Response:
    caller = caller_of(request.scope)
    with services.admission.memory.share() as share:
        content = await read_body(request, services.limits, share)
        body = decode(create_decoder, content, services.limits)
        body.check()
        services.admission.check_available()
        share.add(len(content))
        data = b"".join(
            encode(BatchRequest(each.custom_id, "/v1/messages", each.params)) + b"\n" for each in body.requests
        )
        total, name = len(body.requests), f"{PREFIX}{uuid.uuid4().hex}"
        del body
        given = UploadFile(io.BytesIO(data), size=len(data))
        file = await keep_file(services.store, caller, given, "batch", f"{name}_input.jsonl")
    now = int(time.time())
    batch = Batch(
        id=name,
        endpoint="/v1/messages",
        input_file_id=file.id,
        completion_window="24h",
        status="validating",
        created_at=now,
        expires_at=now + WINDOW_SECONDS,
        request_counts=RequestCounts(total),
    )
    try:
        await services.batches.add(table.StoredBatch(name, caller.owner, caller.salt, True, file.id, encode(batch)))
    except BaseException:
        await services.store.delete(partial(files.delete, owner=caller.owner, file=file.id))
        raise
    return json_response(_shown(batch))


async def listed(store: Database, request: Request) -> Response:
    limit = limit_of(request, _LISTED, _MOST_LISTED)
    after, before = (request.query_params.get(name) for name in ("after_id", "before_id"))
    if after is not None and before is not None:
        raise wrong("before_id", "excludes `after_id`", "invalid_value")
    rows = await store.read(
        partial(
            table.listed,
            owner=caller_of(request.scope).owner,
            limit=limit + 1,
            after=before if after is None else after,
            prefix=PREFIX,
            newest_first=before is None,
        )
    )
    if rows is None:
        raise wrong("after_id" if before is None else "before_id", "names no batch", "invalid_value")
    shown, more = page_of([_shown(batch_decoder.decode(row)) for row in rows], limit)
    if before is not None:
        shown.reverse()
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return json_response(MessageBatchPage(shown, first, last, more))


async def retrieve(store: Database, request: Request) -> Response:
    return json_response(_shown(await store.read(partial(_found, *_names(request)))))


async def cancel(runner: BatchRunner, request: Request) -> Response:
    owner, name = _names(request)
    batch = await runner.cancel(owner, name) if name.startswith(PREFIX) else None
    if batch is None:
        raise _missing(name)
    return json_response(_shown(batch))


async def delete(store: Database, request: Request) -> Response:
    owner, name = _names(request)

    def work(db: "sqlite3.Connection") -> None:
        batch = _found(owner, name, db)
        if _shown(batch).processing_status != "ended":
            raise BadRequest("The batch has not ended; cancel it first.", "message_batch_id", "batch_open", status=409)
        table.delete(db, name)
        for file in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
            if file is not None:
                files.delete(db, owner, file)

    await store.delete(work)
    return json_response(MessageBatchDeleted(name))


async def results(services: StoreServices, request: Request) -> Response:
    batch = await services.store.read(partial(_found, *_names(request)))
    if _shown(batch).processing_status != "ended":
        message = "The batch has not ended; its results come once it has."
        raise BadRequest(message, "message_batch_id", "batch_open", status=404)
    names = [name for name in (batch.input_file_id, batch.output_file_id, batch.error_file_id) if name is not None]
    if not await services.store.read(lambda db: all(files.exists(db, name) for name in names)):
        raise BadRequest("The results have been deleted.", "message_batch_id", "results_deleted", status=404)
    with contextlib.suppress(StoreFailed):  # a full disk can still be read
        await services.store.write(lambda db: files.touch(db, *names))
    found = _results(services.store, services.admission.memory, batch)
    return StreamingResponse(found, headers={"x-content-type-options": "nosniff"}, media_type="application/x-jsonl")


async def _results(store: Database, memory: MemoryBudget, batch: Batch) -> AsyncIterator[bytes]:
    """First those that were answered, then those that were not."""
    answered: set[str] = set()
    for file, good in ((batch.output_file_id, True), (batch.error_file_id, False)):
        if file is None:
            continue
        async with contextlib.aclosing(lines(part_reader(store, file), MAX_LINE_BYTES)) as found:
            async for _, line in found:
                with memory.share() as share:
                    share.add(_LINE_FACTOR * len(line))
                    read = _line_decoder.decode(line)
                    answered.add(read.custom_id)
                    yield _line(read.custom_id, _result(read, good))
    if len(answered) == batch.request_counts.total:
        return
    left = _left(batch)
    async with contextlib.aclosing(lines(part_reader(store, batch.input_file_id))) as found:
        async for _, line in found:
            name = _named_decoder.decode(line).custom_id
            if name not in answered:
                yield _line(name, left)


def _result(line: _Line, good: bool) -> MessageResult:
    if line.response is None:
        return MessageResult("errored", error=_error("" if line.error is None else line.error.message))
    if good:
        return MessageResult("succeeded", message=line.response.body)
    return MessageResult("errored", error=line.response.body)


def _left(batch: Batch) -> MessageResult:
    """Counts the requests that were not made."""
    if batch.status == "cancelled":
        return MessageResult("canceled")
    if batch.status == "expired":
        return MessageResult("expired")
    errors = batch.errors.data if batch.errors is not None else []
    return MessageResult("errored", error=_error(errors[0].message if errors else "The request was not made."))


def _error(message: str) -> MessageErrorResponse:
    return MessageErrorResponse(MessageError("api_error", message), None)


def _line(name: str, result: MessageResult) -> bytes:
    return encode(MessageBatchResult(name, result)) + b"\n"


def _shown(batch: Batch) -> MessageBatch:
    times = (batch.completed_at, batch.failed_at, batch.expired_at, batch.cancelled_at)
    ended = next((at for at in times if at is not None), None)
    counts, left = batch.request_counts, 0
    shown = MessageRequestCounts(processing=counts.total)
    if ended is not None:
        left = counts.total - counts.completed - counts.failed
        cancelled, expired = batch.status == "cancelled", batch.status == "expired"
        shown = MessageRequestCounts(
            succeeded=counts.completed,
            errored=counts.failed + (0 if cancelled or expired else left),
            canceled=left if cancelled else 0,
            expired=left if expired else 0,
        )
    return MessageBatch(
        id=batch.id,
        processing_status="ended"
        if ended is not None
        else "in_progress"
        if batch.cancelling_at is None
        else "canceling",
        request_counts=shown,
        created_at=time_text(batch.created_at),
        expires_at=time_text(batch.expires_at),
        ended_at=None if ended is None else time_text(ended),
        cancel_initiated_at=None if batch.cancelling_at is None else time_text(batch.cancelling_at),
        results_url=None if ended is None else f"{_ROOT}/{batch.id}/results",
    )


def _names(request: Request) -> tuple[str, str]:
    return caller_of(request.scope).owner, request.path_params["message_batch_id"]


def _found(owner: str, name: str, db: "sqlite3.Connection") -> Batch:
    row = table.find(db, owner, name) if name.startswith(PREFIX) else None
    if row is None:
        raise _missing(name)
    batch: Batch = batch_decoder.decode(row.object)
    return batch


def _missing(name: str) -> BadRequest:
    message = f"There is no batch of messages `{name[:80]}` here."
    return BadRequest(message, "message_batch_id", "batch_not_found", status=404)
