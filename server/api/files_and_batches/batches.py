"""``/v1/batches``."""

import time
import uuid
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest, wrong
from stentor.protocols.openai.batches import (
    WINDOW_SECONDS,
    Batch,
    BatchCreate,
    BatchList,
    batch_decoder,
    create_decoder,
)

from ...batches.runner import BatchRunner
from ...middleware.auth import caller_of
from ...state.store_services import StoreServices
from ...storage import batches, files
from ...storage.database import Database
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, read_body
from ..common.query import limit_of, page_of

OPERATIONS: Final[Operations] = {
    "/v1/batches": Operation("Create a batch: answer a file of requests", Batch, BatchCreate, writes_store=True),
    "GET /v1/batches": Operation("List the caller's batches", BatchList),
    "/v1/batches/{id}": Operation("Describe a batch and its progress", Batch, not_found=True),
    "/v1/batches/{id}/cancel": Operation("Cancel a batch; answers so far are kept", Batch, not_found=True),
}
_PREFIX: Final = "batch_"
"""Prefix of their ids: other protocols have batches, too."""
_LISTED: Final = 20
_MOST_LISTED: Final = 100


def routes(services: StoreServices) -> list[Route]:
    return [
        Route("/v1/batches", partial(create, services), methods=["POST"]),
        Route("/v1/batches", partial(listed, services.store), methods=["GET"]),
        Route("/v1/batches/{id}", partial(found, services.store), methods=["GET"]),
        Route("/v1/batches/{id}/cancel", partial(cancel, services.batches), methods=["POST"]),
    ]


async def create(services: StoreServices, request: Request) -> Response:
    with services.admission.memory.share() as share:
        body = decode(create_decoder, await read_body(request, services.limits, share), services.limits)
    body.check()
    services.admission.check_available()
    caller = caller_of(request.scope)
    file = await services.store.read(partial(files.find, owner=caller.owner, file=body.input_file_id))
    if file is None:
        raise wrong("input_file_id", "names no file", "file_not_found")
    if file.purpose != "batch":
        raise wrong("input_file_id", f"names a file of purpose `{file.purpose}`; it must be `batch`")
    now = int(time.time())
    batch = Batch(
        id=f"{_PREFIX}{uuid.uuid4().hex}",
        endpoint=body.endpoint,
        input_file_id=file.id,
        completion_window=body.completion_window,
        status="validating",
        created_at=now,
        expires_at=now + WINDOW_SECONDS,
        metadata=body.metadata,
    )
    row = batches.StoredBatch(batch.id, caller.owner, caller.salt, True, file.id, msgspec.json.encode(batch))
    await services.batches.add(row)
    return json_response(batch)


async def listed(store: Database, request: Request) -> Response:
    limit = limit_of(request, _LISTED, _MOST_LISTED)
    after = request.query_params.get("after")
    rows = await store.read(
        partial(batches.listed, owner=caller_of(request.scope).owner, limit=limit + 1, after=after, prefix=_PREFIX)
    )
    if rows is None:
        raise wrong("after", "names no batch", "invalid_value")
    shown, more = page_of([batch_decoder.decode(row) for row in rows], limit)
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return json_response(BatchList(shown, first, last, more))


async def found(store: Database, request: Request) -> Response:
    owner, name = caller_of(request.scope).owner, request.path_params["id"]
    row = await store.read(partial(batches.find, owner=owner, batch=name))
    if row is None or not name.startswith(_PREFIX):
        raise _missing()
    return json_response(batch_decoder.decode(row.object))


async def cancel(runner: BatchRunner, request: Request) -> Response:
    name = request.path_params["id"]
    batch = await runner.cancel(caller_of(request.scope).owner, name) if name.startswith(_PREFIX) else None
    if batch is None:
        raise _missing()
    if batch.status in ("completed", "failed", "expired"):
        raise BadRequest(f"The batch has ended: it is {batch.status}.", "id", "batch_ended", status=409)
    return json_response(batch)


def _missing() -> BadRequest:
    return BadRequest("There is no batch of this name.", "id", "batch_not_found", status=404)
