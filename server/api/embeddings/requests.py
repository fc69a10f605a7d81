"""What the routes for vectors and scores have in common: the model that is meant, its texts, and a job for them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from starlette.requests import Request

from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest, wrong
from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.pooling import Pooled, Pooling, PoolingTask
from stentor.protocols.pooling.common import InputFields, PoolingFields, TextUsage
from stentor.protocols.pooling.formats import NumberFields

from ...common.loop_turns import LoopTurns, Slices
from ...config.model_registry import ModelRegistry
from ...config.models import ModelConfig
from ...http.whole_answer import AnswerBudget, WholeAnswer
from ...middleware.auth import caller_of
from ...observability.request import current_record
from ...overload.request_context import RequestContext
from ...pooling.encoding import NumberWriter, number_bytes
from ...pooling.model import EmbeddingModel
from ...pooling.purposes import adapter_of, prompt_of
from ...pooling.reading import LengthLimit, Prompt, read_messages, read_texts
from ...pooling.running import PoolingJob
from ...state.admission_control import AdmissionControl


@dataclass(frozen=True)
class EmbeddingServices:
    """What these routes use."""

    config: ModelConfig
    admission: AdmissionControl
    registry: ModelRegistry
    model: EmbeddingModel | None
    """None where none is served."""
    turns: LoopTurns

    @property
    def limits(self) -> Limits:
        """Of what one request may ask for."""
        return self.admission.limits


@dataclass(frozen=True)
class ResolvedRequest:
    """One request: what it names, and its way to the engine."""

    model: EmbeddingModel
    name: str
    """By which the client knows the model."""
    job: PoolingJob
    room: AnswerBudget
    turns: LoopTurns

    @property
    def usage(self) -> TextUsage:
        return TextUsage.of(self.job.tokens)

    def writer(self) -> NumberWriter:
        """For its answer."""
        return NumberWriter(self.room, self.turns)


def resolve_request(
    services: EmbeddingServices,
    request: Request,
    context: RequestContext,
    name: str | None,
    priority: int,
    salt: str | None = None,
) -> ResolvedRequest:
    """Raises BadRequest for a name that no such model has."""
    served = services.registry.resolve(name, "embedding")
    model = services.model
    assert model is not None, "the registry has it"
    own = caller_of(request.scope).cache_salt(salt)
    room = AnswerBudget(services.limits.max_answer_bytes, context.queue_slot.memory)
    job = PoolingJob(model, context.queue_slot, current_record.get(), priority=priority, salt=own, room=room)
    return ResolvedRequest(model, served, job, room, services.turns)


def room_of(services: EmbeddingServices, model: EmbeddingModel, fields: PoolingFields) -> LengthLimit:
    return LengthLimit.of(model, fields, services.limits.max_prompt_tokens)


async def read_input(
    services: EmbeddingServices, model: EmbeddingModel, fields: InputFields, purpose: tuple[str, str] | None = None
) -> list[Prompt]:
    """The prompts of a request with texts or conversations; ``purpose`` names a prompt of the model, and the field
    that does. Raises BadRequest."""
    room = room_of(services, model, fields)
    if conversations := fields.conversations:
        trusts = services.config.trust_request_chat_template
        return [
            await read_messages(model, fields, messages, field, room, trusts_templates=trusts)
            for messages, field in conversations
        ]
    before = prompt_of(model.config, *(purpose or (None,)))
    special = fields.add_special_tokens is not False
    return await read_texts(model, fields.texts, room, "input", special=special, prompt=before)


def vectors(
    model: EmbeddingModel,
    dimensions: int | None,
    normalize: bool | None,
    purpose: str | None = None,
    field: str = "dimensions",
) -> Pooling:
    """Vectors of texts for ``purpose``, cut to ``dimensions``. Raises BadRequest where the model was not trained for
    that."""
    _check_task(model, "embed", "model")
    adapter = adapter_of(model.config, purpose)
    return Pooling("embed", dimensions=_dimensions(model, dimensions, field), normalize=normalize, adapter=adapter)


def pooling_of(
    model: EmbeddingModel, task: PoolingTask, dimensions: int | None, normalize: bool | None, activate: bool | None
) -> Pooling:
    """What ``task`` asks for. Raises BadRequest for one that the model was not made for."""
    _check_task(model, task, "task")
    if task in ("embed", "token_embed"):
        return Pooling(task, dimensions=_dimensions(model, dimensions, "dimensions"), normalize=normalize)
    if dimensions is not None:
        raise wrong("dimensions", f"are of vectors, and `{task}` makes none")
    return Pooling(task, activate=activate is not False)


def _check_task(model: EmbeddingModel, task: PoolingTask, field: str) -> None:
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
    """The numbers themselves, one text's after another's; with ``bytes`` a header says where whose are."""
    type, order = fields.embed_dtype, fields.endianness
    pieces, items, at = [], [], 0
    slices = Slices(resolved.turns)
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
            "id": new_id("embd"),
            "created": now(),
            "model": resolved.name,
            "data": items,
            "usage": resolved.usage,
        }
        answer.headers["metadata"] = encode(metadata).decode()
    return answer


def new_id(kind: str) -> str:
    return f"{kind}-{uuid4().hex}"


def now() -> int:
    """Seconds since the epoch."""
    return int(time.time())
