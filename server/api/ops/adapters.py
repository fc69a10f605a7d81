"""``POST /v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, for admin keys. Paths, answers and errors are
vLLM's; without ``/v1`` they are SGLang's."""

from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from stentor.engine.loading.adapter_files import AdapterMissing, adapter_identity, path_below
from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.common.decoding import decode
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest

from ...common.keys import Keyring
from ...generation.chat_model import ChatModel
from ...middleware.auth import AdminRoute
from ..common.described import Operation, Operations
from ..common.endpoint import read_counted_body

_INVALID: Final = "InvalidUserInput"
_MISSING: Final = "NotFoundError"
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """``lora_path`` is a folder below ``--lora-folder``."""

    lora_name: _Text = ""
    lora_path: _Text = ""
    load_inplace: bool = False
    """Replaces an adapter with this name; its running requests keep it to their end."""


class AdapterOutcome(msgspec.Struct, frozen=True):
    """SGLang's."""

    success: bool
    loaded_adapters: dict[str, str]
    """Their names; paths are not disclosed."""
    error_message: str | None = None


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """Requests that have the adapter end with it."""

    lora_name: _Text = ""


load_decoder: Final = msgspec.json.Decoder(LoadAdapterRequest)
unload_decoder: Final = msgspec.json.Decoder(UnloadAdapterRequest)

OPERATIONS: Final[Operations] = {
    "/v1/load_lora_adapter": Operation(
        "Load an adapter, which requests may then name as model",
        str,
        LoadAdapterRequest,
        media_type="text/plain",
        needs_engine=True,
        not_found=True,
    ),
    "/v1/unload_lora_adapter": Operation(
        "Let no request find an adapter any more", str, UnloadAdapterRequest, media_type="text/plain", not_found=True
    ),
    "/load_lora_adapter": Operation("Load an adapter (SGLang)", AdapterOutcome, LoadAdapterRequest, needs_engine=True),
    "/unload_lora_adapter": Operation(
        "Let no request find an adapter any more (SGLang)", AdapterOutcome, UnloadAdapterRequest
    ),
}


def routes(chat: ChatModel, keys: Keyring) -> list[Route]:
    return [
        AdminRoute("/v1/load_lora_adapter", partial(load_adapter, chat), keys, methods=["POST"]),
        AdminRoute("/v1/unload_lora_adapter", partial(unload_adapter, chat), keys, methods=["POST"]),
        AdminRoute("/load_lora_adapter", partial(_told_as_sglang_does, chat, load_adapter), keys, methods=["POST"]),
        AdminRoute("/unload_lora_adapter", partial(_told_as_sglang_does, chat, unload_adapter), keys, methods=["POST"]),
    ]


async def _told_as_sglang_does(
    chat: ChatModel, change: Callable[[ChatModel, Request], Awaitable[Response]], request: Request
) -> Response:
    """A fault is in the body too, with 400."""
    fault = None
    try:
        await change(chat, request)
    except BadRequest as error:
        if error.code is not None:  # of the request itself, before there was an adapter to speak of
            raise
        fault = error.message
    names = {adapter.name: adapter.name for adapter in chat.registry.adapters}
    status = HTTPStatus.OK if fault is None else HTTPStatus.BAD_REQUEST
    outcome = encode(AdapterOutcome(fault is None, names, fault))
    return Response(outcome, status, media_type="application/json")


async def load_adapter(chat: ChatModel, request: Request) -> Response:
    body = decode(load_decoder, await read_counted_body(request, chat.admission), chat.limits)
    name, adapters = body.lora_name, chat.registry.adapters
    if not name or not body.lora_path:
        raise _refused("Both 'lora_name' and 'lora_path' must be provided.")
    if not adapters.root:
        raise _refused("Adapters are loaded where the server was started with --enable-lora and --lora-folder.")
    known = name in adapters
    if known and not body.load_inplace:
        raise _refused(
            f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
            "'load_inplace' to True."
        )
    if not known and any(name in model.names for model in chat.registry):
        raise _refused(f"A model is served as '{name}' already: give the adapter another name.")
    try:
        path = path_below(adapters.root, body.lora_path)
        identity = await anyio.to_thread.run_sync(adapter_identity, adapters.root, path)
    except AdapterMissing as error:
        raise _missing(str(error)) from error
    except CheckpointError as error:
        raise _refused(str(error)) from error
    adapter = adapters.new(name, path, identity)
    answer = await chat.client.load_adapter(adapter)
    if answer.error:
        raise (_missing if answer.missing else _refused)(answer.error)
    adapters.add(adapter)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


async def unload_adapter(chat: ChatModel, request: Request) -> Response:
    body = decode(unload_decoder, await read_counted_body(request, chat.admission), chat.limits)
    if not body.lora_name:
        raise _refused("'lora_name' needs to be provided to unload a LoRA adapter.")
    if not chat.registry.adapters.remove(body.lora_name):
        raise _missing(f"The lora adapter '{body.lora_name}' cannot be found.")
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _refused(why: str) -> BadRequest:
    return BadRequest(why, kind=_INVALID)


def _missing(why: str) -> BadRequest:
    return BadRequest(why, kind=_MISSING, status=404)
