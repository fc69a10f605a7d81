"""``GET /server_info`` and ``/tokenizer_info``, vLLM's."""

import importlib.metadata
import os
import platform
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import stentor

from ...common.keys import Keyring
from ...config.config import Config
from ...config.described import described
from ...generation.chat_model import ChatModel
from ...middleware.auth import AdminRoute
from ..common.described import Operation, Operations
from ..common.endpoint import json_response
from ..common.query import choice_of

_PACKAGES: Final = ("torch", "triton", "transformers", "tokenizers", "safetensors", "msgspec", "starlette", "uvicorn")


class ServerInfo(msgspec.Struct, frozen=True):
    version: str
    vllm_config: dict[str, Any] | str
    """Options by name; as text, one a line. vLLM's name of the field."""
    system_env: dict[str, str | int]


class TokenizerInfo(msgspec.Struct, frozen=True):
    tokenizer_class: str
    model_max_length: int | None
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    added_tokens: list[str]
    chat_template: str | dict[str, str] | None


OPERATIONS: Final[Operations] = {
    "/server_info": Operation(
        "The server's version, options and system. `?config_format=` is `text` (the default) or `json`",
        ServerInfo,
        query={"config_format": str},
    ),
    "/tokenizer_info": Operation("Describe the chat model's tokenizer and its chat template", TokenizerInfo),
}


def routes(config: Config, chat: ChatModel, keys: Keyring) -> list[Route]:
    return [
        AdminRoute("/server_info", partial(server_info, config), keys, methods=["GET"]),
        Route("/tokenizer_info", partial(tokenizer_info, chat), methods=["GET"]),
    ]


async def server_info(config: Config, request: Request) -> Response:
    shown = choice_of(request, "config_format", ("text", "json"))
    options = described(config)
    as_text = "\n".join(f"{name} = {value}" for name, value in options.items())
    return json_response(ServerInfo(stentor.__version__, as_text if shown == "text" else options, _system()))


def _system() -> dict[str, str | int]:
    system: dict[str, str | int] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
    }
    for package in _PACKAGES:
        try:
            system[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            system[package] = "not installed"
    return system


async def tokenizer_info(chat: ChatModel, _request: Request) -> Response:
    tokenizer = chat.pool.tokenizer
    special = tokenizer.special_tokens
    return json_response(
        TokenizerInfo(
            type(tokenizer.backend).__name__,
            chat.max_model_len,
            tokenizer.vocab_size,
            tokenizer.bos_token,
            tokenizer.eos_token,
            special.get("pad_token"),
            special.get("unk_token"),
            tokenizer.added_texts,
            tokenizer.chat_template,
        )
    )
