"""Shared by the routes for vectors and scores: the model, its texts, and a job for them."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
from starlette.requests import Request

from stentor.engine.model_config.encoders.pooling import QUERY
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest, wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.pooling import Pooled, Pooling, PoolingTask
from stentor.protocols.pooling.common import InputFields, Message, PoolingFields, TextUsage
from stentor.protocols.pooling.contents import Content, content_as_text, plain_text
from stentor.protocols.pooling.formats import NumberFields

from ...common.loop_turns import LoopTurns, Slices
from ...config.model_registry import ModelRegistry
from ...config.models import ModelConfig
from ...generation.chat_model import ChatModel
from ...http.whole_answer import AnswerBudget, WholeAnswer
from ...media.collect import holds_media
from ...middleware.auth import caller_of
from ...observability.request import current_record
from ...overload.request_context import RequestContext
from ...pooling.encoding import NumberWriter, number_bytes
from ...pooling.model import EmbeddingModel
from ...pooling.purposes import adapter_of, prompt_of
from ...pooling.reading import (
    WITH_MEDIA,
    LengthLimit,
    Prompt,
    Reading,
    read_content,
    read_messages,
    read_parts,
    read_texts,
    side_by_side,
)
from ...pooling.running import PoolingJob
from ...state.admission_control import AdmissionControl
from ..common.endpoint import name_anew, request_id

T = TypeVar("T")


class EmbeddingServices(msgspec.Struct, frozen=True):
    """Services of these routes."""

    config: ModelConfig
    admission: AdmissionControl
    registry: ModelRegistry
    model: EmbeddingModel | None
    """None without an embedding model."""
    loop_turns: LoopTurns
    chat: ChatModel
    """Scores items by next tokens."""

    @property
    def limits(self) -> Limits:
        """Limits of one request."""
        return self.admission.limits


class ResolvedRequest(msgspec.Struct, frozen=True):
    """One request: its model, and its path to the engine."""

    model: EmbeddingModel
    name: str
    """The client's name of the model."""
    job: PoolingJob
    budget: AnswerBudget
    loop_turns: LoopTurns
    request_id: str

    @property
    def usage(self) -> TextUsage:
        return TextUsage.of(self.job.tokens)

    def writer(self) -> NumberWriter:
        """For its answer."""
        return NumberWriter(self.budget, self.loop_turns)

    def id(self, kind: str) -> str:
        """Of its answer."""
        return f"{kind}-{self.request_id}"


def resolve_request(
    services: EmbeddingServices,
    request: Request,
    context: RequestContext,
    name: str | None,
    priority: int,
    salt: str | None = None,
    wanted_id: str | None = None,
) -> ResolvedRequest:
    """``wanted_id``: the body's ``request_id``. Raises BadRequest for a name that no such model has."""
    name_anew(request, wanted_id)
    served = services.registry.resolve(name, "embedding")
    model = services.model
    assert model is not None, "the registry has it"
    own = caller_of(request.scope).cache_salt(salt)
    budget = AnswerBudget(services.limits.max_answer_bytes, context.queue_slot.memory)
    job = PoolingJob(
        model,
        context.queue_slot,
        current_record.get(),
        priority=context.priority(priority),
        salt=own,
        budget=budget,
        adapter=services.registry.adapter_of(served),
    )
    return ResolvedRequest(model, served, job, budget, services.loop_turns, request_id(request))


def room_of(services: EmbeddingServices, model: EmbeddingModel, fields: PoolingFields) -> LengthLimit:
    return LengthLimit.of(model, fields, services.limits.max_prompt_tokens)


def reading_of(services: EmbeddingServices, what: ResolvedRequest, fields: PoolingFields) -> Reading:
    """How the conversations of a request are read, of which only some have :class:`InputFields`. Raises BadRequest."""
    options = fields.mm_processor_kwargs, fields.media_io_kwargs
    plain = InputFields(mm_processor_kwargs=options[0], media_io_kwargs=options[1])
    return Reading(
        fields if isinstance(fields, InputFields) else plain,
        room_of(services, what.model, fields),
        what.job.memory,
        services.limits.max_prompt_chars,
        services.config.trust_request_chat_template,
    )


async def pool_input(
    services: EmbeddingServices,
    what: ResolvedRequest,
    fields: InputFields,
    wanted: Pooling,
    purpose: tuple[str, str] | None = None,
    number_bytes: int = 4,
) -> list[Pooled]:
    """The output of ``wanted`` for each text, object or conversation of a request, in order; ``purpose`` names a prompt
    of the model, and the field with it. Raises BadRequest, and as :meth:`...pooling.running.PoolingJob.run`."""
    model, reading = what.model, reading_of(services, what, fields)
    if conversations := fields.conversations:

        async def read(given: tuple[list[Message], str]) -> Prompt:
            return await read_messages(model, reading, *given)

        seeing = any(holds_media(messages) for messages, _ in conversations)
        return await _pool_in_parts(what.job, conversations, read, wanted, number_bytes, seeing=seeing)
    before = prompt_of(model.config, *(purpose or (None,)))
    if objects := fields.objects:
        return await pool_contents(what, reading, objects, "input", wanted, before, number_bytes)
    special = fields.add_special_tokens is not False and wanted.adapter != QUERY
    texts = await read_texts(model, fields.texts, reading.room, "input", special=special, prompt=before)
    return await what.job.run(texts, wanted, number_bytes=number_bytes)


async def pool_parts(
    services: EmbeddingServices,
    what: ResolvedRequest,
    fields: InputFields,
    wanted: Pooling,
    purpose: tuple[str, str] | None,
    number_bytes: int,
) -> list[Pooled]:
    """A vector for each text of a request, all of which are read as one before their tokens are averaged: late chunking
    (arXiv:2409.04701). Raises as :func:`pool_input`."""
    model = what.model
    if set(model.config.modules.pooling) != {"mean"}:
        why = f"needs a model whose vectors are the mean of tokens, and those of `{model.name}` are not; leave it out"
        raise wrong("late_chunking", why, "unsupported")
    texts = [content_as_text(each) for each in fields.objects] or fields.texts
    written = [text for text in texts if isinstance(text, str)]
    if len(written) < len(texts):
        raise wrong("input", "must hold texts with `late_chunking`", "invalid_value")
    prompt = await read_parts(
        model,
        written,
        room_of(services, model, fields),
        "input",
        special=fields.add_special_tokens is not False,
        prompt=prompt_of(model.config, *(purpose or (None,))),
    )
    (made,) = await what.job.run([prompt], wanted, number_bytes=number_bytes)
    size = len(made.data) // made.rows
    return [Pooled(1, made.columns, made.data[at : at + size]) for at in range(0, len(made.data), size)]


async def pool_contents(
    what: ResolvedRequest,
    reading: Reading,
    contents: Sequence[Content],
    field: str,
    wanted: Pooling,
    prompt: str,
    number_bytes: int = 4,
) -> list[Pooled]:
    """What the model pools of each of the contents of ``field``. For a multimodal model, parts become the user's
    message and ``prompt`` the system's; strings, and all texts of other models, get it as a prefix."""
    model = what.model
    given = contents if model.sees else [content_as_text(each) for each in contents]
    texts = [each for each in given if isinstance(each, str)]
    if len(texts) == len(given):
        prompts = await read_texts(model, texts, reading.room, field, prompt=prompt)
        return await what.job.run(prompts, wanted, field, number_bytes)

    async def read(named: tuple[Content, str]) -> Prompt:
        content, where = named
        if model.markers.picture and (text := plain_text(content)) is not None:
            content = text
        if isinstance(content, str):
            (made,) = await read_texts(model, [content], reading.room, where, prompt=prompt)
            return made
        return await read_content(model, reading, content, where, prompt)

    named = [(content, f"{field}[{place}]") for place, content in enumerate(given)]
    seeing = any(plain_text(content) is None for content in given)
    return await _pool_in_parts(what.job, named, read, wanted, number_bytes, seeing=seeing)


async def _pool_in_parts(
    job: PoolingJob,
    given: Sequence[T],
    read: Callable[[T], Awaitable[Prompt]],
    wanted: Pooling,
    number_bytes: int,
    *,
    seeing: bool,
) -> list[Pooled]:
    """``seeing``: processed media are held until they are pooled, so that few are read at a time."""
    if not seeing:
        return await job.run([await read(each) for each in given], wanted, number_bytes=number_bytes)
    found: list[Pooled] = []
    for start in range(0, len(given), WITH_MEDIA):
        prompts = await side_by_side(read, given[start : start + WITH_MEDIA])
        found += await job.run(prompts, wanted, number_bytes=number_bytes)
    return found


def vectors(
    model: EmbeddingModel,
    dimensions: int | None,
    normalize: bool | None,
    purpose: str | None = None,
    field: str = "dimensions",
) -> Pooling:
    """Vectors of texts for ``purpose``, cut to ``dimensions``. Raises BadRequest where the model was not trained for
    that, and for a model that makes vectors of tokens."""
    if model.per_token:
        why = "makes a vector for each token, which /v1/embeddings and /pooling return"
        raise BadRequest(f"`{model.name}` {why}.", "model", "model_not_supported")
    _check_task(model, "embed", "model")
    adapter = adapter_of(model.config, purpose)
    return Pooling("embed", dimensions=_dimensions(model, dimensions, field), normalize=normalize, adapter=adapter)


def pooling_of(
    model: EmbeddingModel, task: PoolingTask, dimensions: int | None, normalize: bool | None, activate: bool | None
) -> Pooling:
    """The pooling of ``task``. Raises BadRequest for a task that the model does not support."""
    _check_task(model, task, "task")
    if task in ("embed", "token_embed"):
        return Pooling(task, dimensions=_dimensions(model, dimensions, "dimensions"), normalize=normalize)
    if dimensions is not None:
        raise wrong("dimensions", f"are of vectors, and `{task}` makes none")
    return Pooling(task, activate=activate is not False)


def _check_task(model: EmbeddingModel, task: PoolingTask, field: str) -> None:
    if model.compares == "list":
        raise BadRequest(
            f"`{model.name}` ranks documents that it reads together with a query; use /rerank or /score.",
            field,
            "model_not_supported" if field == "model" else "invalid_value",
        )
    if task not in model.tasks:
        raise BadRequest(
            f"`{model.name}` does not serve the task `{task}`; it serves {', '.join(model.tasks)}.",
            field,
            "model_not_supported" if field == "model" else "invalid_value",
        )


def _dimensions(model: EmbeddingModel, wanted: int | None, field: str) -> int:
    config = model.config
    if wanted is None or wanted == config.dimensions:
        return 0
    lengths = config.matryoshka
    if lengths is True and wanted < config.dimensions:
        return wanted
    if isinstance(lengths, tuple) and wanted in lengths:
        return wanted
    if isinstance(lengths, tuple):
        can = f"it can be cut to {', '.join(map(str, lengths))}"
    elif lengths:
        can = "fewer are possible, more are not"
    else:
        can = "it was not trained for others (Matryoshka)"
    raise wrong(
        field, f"is {wanted}; vectors of `{model.name}` have {config.dimensions} dimensions, and {can}", "invalid_value"
    )


async def binary_answer(
    resolved: ResolvedRequest, found: Sequence[Pooled], fields: NumberFields, *, flat: bool
) -> WholeAnswer:
    """The numbers as bytes, text after text; with ``bytes`` a header gives the position of each text's."""
    type, order = fields.embed_dtype, fields.endianness
    pieces, items, at = [], [], 0
    slices = Slices(resolved.loop_turns)
    for index, each in enumerate(found):
        piece = number_bytes(each, type, order)
        shape = [each.columns] if flat else [each.rows, each.columns]
        where = {"start": at, "end": at + len(piece), "shape": shape}
        items.append({"index": index, "embed_dtype": type, "endianness": order, **where})
        pieces.append(piece)
        at += len(piece)
        await slices.did(len(piece))
    answer = WholeAnswer(pieces, "application/octet-stream")
    if fields.encoding_format == "bytes":
        metadata = {
            "id": resolved.id("embd"),
            "created": now(),
            "model": resolved.name,
            "data": items,
            "usage": resolved.usage,
        }
        answer.headers["metadata"] = encode(metadata).decode()
    return answer


def now() -> int:
    """Seconds since the epoch."""
    return int(time.time())
