"""Ollama's endpoints about models: lists, descriptions, and requests to change models."""

import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from typing import Any, Final, NoReturn

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stentor.protocols.common.decoding import decode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ollama.objects import (
    ListedModel,
    ModelDetails,
    OllamaLoaded,
    OllamaModel,
    OllamaModels,
    OllamaStatus,
    OllamaVersion,
    RunningModel,
)
from stentor.protocols.ollama.request import OllamaModelRequest, named_decoder

from ...config.model_facts import ModelFacts
from ...config.model_registry import ServedModel
from ...generation.chat_model import ChatModel
from ...http.error_shapes import OLLAMA
from ...pooling.model import EmbeddingModel
from ..common.described import Operation, Operations
from ..common.endpoint import json_response, read_counted_body
from .encoder import rfc3339
from .translate import known_name

VERSION: Final = "0.12.11"
"""The first version of Ollama with the API implemented here; clients check it for features."""
_NEVER: Final = "9999-12-31T23:59:59Z"
"""When a model goes that stays."""
_INSTEAD: Final = {
    "/api/create": "Models are not made here. Give a folder or a file as MODEL of `stentor serve`, and system prompts "
    "and sampling options in each request.",
    "/api/copy": "Models have the names that `stentor serve` gave them: add one with --served-model-name.",
    "/api/push": "Models are not pushed from here.",
    "/api/delete": "Models are not deleted from here: end `stentor serve` and remove the model's files.",
}
"""Requests that are always refused, and the alternative."""

OPERATIONS: Final[Operations] = {
    "/api/tags": Operation("List all names of all models (Ollama's API)", OllamaModels, errors=OLLAMA),
    "/api/ps": Operation("List the models that are loaded (Ollama's API)", OllamaLoaded, errors=OLLAMA),
    "/api/show": Operation(
        "Describe one model (Ollama's API)", OllamaModel, OllamaModelRequest, not_found=True, errors=OLLAMA
    ),
    "/api/pull": Operation(
        "Say that a model is there (Ollama's API)", OllamaStatus, OllamaModelRequest, not_found=True, errors=OLLAMA
    ),
    "/api/version": Operation("Name the version of Ollama's API", OllamaVersion, errors=OLLAMA),
    **{path: Operation(f"Refuse what needs Ollama itself: `{path}`", None, errors=OLLAMA) for path in _INSTEAD},
}


class _Models(msgspec.Struct, frozen=True):
    chat: ChatModel
    embedding: EmbeddingModel | None
    created: str

    def __iter__(self) -> Iterator[tuple[ServedModel, str]]:
        """Models for Ollama's clients, under each of their names."""
        registry = self.chat.registry
        for model in (*registry, *registry.adapted):
            if model.kind in ("chat", "embedding"):
                for name in model.names:
                    yield model, name

    def facts(self, model: ServedModel) -> ModelFacts:
        if model.kind == "chat":
            return self.chat.facts
        return ModelFacts() if self.embedding is None else self.embedding.facts

    def context(self, model: ServedModel) -> int:
        """0 while it is loading."""
        if model.kind == "chat":
            return self.chat.max_model_len or 0
        return 0 if self.embedding is None or self.embedding.client.ready is None else self.embedding.max_length


def routes(chat: ChatModel, embedding: EmbeddingModel | None) -> list[Route]:
    models = _Models(chat, embedding, rfc3339(time.time()))
    return [
        Route("/api/tags", partial(list_models, models), methods=["GET"]),
        Route("/api/ps", partial(loaded_models, models), methods=["GET"]),
        Route("/api/show", partial(show, models), methods=["POST"]),
        Route("/api/pull", partial(pull, models), methods=["POST"]),
        Route("/api/version", version, methods=["GET"]),
        *(
            Route(path, partial(_refuse, path), methods=["DELETE" if path == "/api/delete" else "POST"])
            for path in _INSTEAD
        ),
    ]


async def list_models(models: _Models, _request: Request) -> Response:
    listed = [
        ListedModel(
            name, name, models.created, models.facts(model).weight_bytes, _digest(model, name), _details(models, model)
        )
        for model, name in models
    ]
    return json_response(OllamaModels(listed))


async def loaded_models(models: _Models, _request: Request) -> Response:
    loaded = []
    for model, name in models:
        size, context = models.facts(model).weight_bytes, models.context(model)
        if context:
            digest, details = _digest(model, name), _details(models, model)
            loaded.append(RunningModel(name, name, size, digest, details, _NEVER, size, context))
    return json_response(OllamaLoaded(loaded))


async def show(models: _Models, request: Request) -> Response:
    model, name = await _named(models, request)
    facts = models.facts(model)
    family = facts.family
    info: dict[str, Any] = {"general.architecture": family, "general.parameter_count": facts.parameters}
    info[f"{family}.context_length"] = models.context(model)
    info[f"{family}.embedding_length"] = facts.hidden_size
    chat = model.kind == "chat"
    return json_response(
        OllamaModel(
            modified_at=models.created,
            modelfile=f"FROM {name}\n",
            parameters=_parameters(models.chat) if chat else "",
            template=models.chat.pool.tokenizer.template_source if chat else "",
            details=_details(models, model),
            model_info=info,
            capabilities=_capabilities(models.chat) if chat else ["embedding"],
        )
    )


async def pull(models: _Models, request: Request) -> Response:
    """Clients pull a model before use; the server's models are present."""
    try:
        await _named(models, request)
    except BadRequest as error:
        if error.code != "model_not_found":
            raise
        why = f"{error.message} Models are not pulled here: start the server with `stentor serve MODEL`."
        raise BadRequest(why, None, error.code, error.status) from None
    return json_response(OllamaStatus("success"))


async def version(_request: Request) -> Response:
    return json_response(OllamaVersion(VERSION))


async def _refuse(path: str, _request: Request) -> NoReturn:
    raise BadRequest(_INSTEAD[path], None, "unsupported")


async def _named(models: _Models, request: Request) -> tuple[ServedModel, str]:
    admission = models.chat.admission
    body = decode(named_decoder, await read_counted_body(request, admission), admission.limits)
    name = known_name(models.chat.registry, body.named)
    return models.chat.registry.find(name), name


def _details(models: _Models, model: ServedModel) -> ModelDetails:
    facts = models.facts(model)
    size = f"{facts.parameters / 1e9:.1f}B" if facts.parameters >= 1e9 else f"{facts.parameters / 1e6:.1f}M"
    families = [facts.family] if facts.family else []
    parameters = size if facts.parameters else ""
    return ModelDetails(model.parent, facts.format, facts.family, families, parameters, facts.dtype)


def _digest(model: ServedModel, name: str) -> str:
    return sha256(f"{model.root}\n{name}".encode()).hexdigest()


def _capabilities(chat: ChatModel) -> list[str]:
    """Capabilities by Ollama's names."""
    modalities = chat.input_modalities
    able = {
        "completion": True,
        "tools": chat.output.tools is not None,
        "thinking": chat.output.reasoning is not None,
        "insert": chat.infill is not None,
        "vision": "image" in modalities,
        "audio": "audio" in modalities,
    }
    return [name for name, can in able.items() if can]


def _parameters(chat: ChatModel) -> str:
    """The sampling defaults, a line each."""
    defaults = chat.defaults
    values = {
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
        "repeat_penalty": defaults.repetition_penalty,
    }
    return "\n".join(f"{name:<30} {value:g}" for name, value in values.items())
