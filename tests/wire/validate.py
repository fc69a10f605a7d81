"""What a server sends, held strictly against the SDKs' own types.

``check_object(ChatCompletion, body, CHAT_EXTENSIONS)`` validates one object, and ``check_event(ResponseStreamEvent,
data, …)`` one event of a union, whose member is found by ``type``, so that an error is about that member alone. Both
are pydantic's strict mode (a number in a string, a missing field, a wrong literal fail), and beyond it refuse fields
that the SDK's type does not declare, at any depth, unless ``extensions`` lists them by the name of the type. Both
return the SDK's object. What is wrong is a :class:`WireError`, which is an AssertionError.

``frames_of(text)`` takes a stream of server-sent events apart, strictly too. Order, and the whole answer that a stream
comes to, are next door: :mod:`.chat`, :mod:`.responses` and :mod:`.messages` each have ``check_stream(text)``, which
validates every event, holds the protocol's order, and returns the answer as a dictionary of the shape that a request
without ``stream`` gets; ``assert_same_answer(whole, streamed)`` compares the two.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

import pydantic

Extensions = Mapping[str, frozenset[str]]
"""Fields beyond the SDK's, by the name of the type that has them."""

Model = TypeVar("Model", bound=pydantic.BaseModel)

NONE: Final[Extensions] = {}
CHAT_EXTENSIONS: Final[Extensions] = {
    "ChatCompletion": frozenset({"prompt_logprobs", "prompt_token_ids"}),
    "ChatCompletionChunk": frozenset({"prompt_token_ids"}),
    "Choice": frozenset({"stop_reason", "token_ids"}),
    "ChatCompletionMessage": frozenset({"reasoning", "reasoning_content"}),
    "ChoiceDelta": frozenset({"reasoning", "reasoning_content"}),
}
COMPLETION_EXTENSIONS: Final[Extensions] = {
    "CompletionChoice": frozenset({"stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs"}),
}
EMBEDDING_EXTENSIONS: Final[Extensions] = {"CreateEmbeddingResponse": frozenset({"id", "created"})}
_CHUNK: Final = frozenset({"id", "object", "created", "model", "choices"})
TRANSCRIPT_EXTENSIONS: Final[Extensions] = {
    "TranscriptionTextDeltaEvent": _CHUNK | {"usage"},
    "TranscriptionTextDoneEvent": _CHUNK,
}


class WireError(AssertionError):
    """What was sent is not what the protocol says."""


@dataclass(frozen=True)
class Frame:
    """One server-sent event."""

    event: str | None
    data: str


def check_object(model: type[Model], data: bytes | str | Mapping[str, Any], extensions: Extensions = NONE) -> Model:
    """The SDK's object. Raises WireError."""
    text = json.dumps(data) if isinstance(data, Mapping) else data
    try:
        found = model.model_validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        raise WireError(f"{model.__name__}: {error}") from None
    _refuse_unknown(found, model.__name__, extensions)
    return found


def check_event(union: Any, data: bytes | str | Mapping[str, Any], extensions: Extensions = NONE) -> Any:
    """The SDK's object for one member of a union that is told apart by ``type``. Raises WireError."""
    value = data if isinstance(data, Mapping) else _parsed(data)
    tag = value.get("type")
    member = _tagged(union).get(tag)
    if member is None:
        raise WireError(f"no event of the SDK has the type {tag!r}")
    return check_object(member, value, extensions)


def frames_of(text: bytes | str) -> list[Frame]:
    """The events of a stream, comments left out. Raises WireError for what is no well-formed stream."""
    if isinstance(text, bytes):
        text = text.decode()  # strictly: half a character in a stream is an error of ours
    if text and not text.endswith("\n\n"):
        raise WireError(f"the stream ends within a frame: {text[-80:]!r}")
    return [_frame(block) for block in text.split("\n\n")[:-1] if not block.startswith(":")]


def assert_same_answer(
    whole: Mapping[str, Any], streamed: Mapping[str, Any], ignored: Sequence[str] = ("id", "created", "created_at")
) -> None:
    """Raises WireError with the first path at which they differ; keys named ``ignored`` are not looked at, anywhere."""
    for path, first, second in _differences(whole, streamed, "", frozenset(ignored)):
        raise WireError(f"{path or 'the answer'}: whole {first!r}, streamed {second!r}")


def _parsed(data: bytes | str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise WireError(f"not JSON: {error}: {data[:80]!r}") from None
    if not isinstance(value, dict):
        raise WireError(f"not an object: {data[:80]!r}")
    return value


def _frame(block: str) -> Frame:
    event, data = None, None
    for line in block.split("\n"):
        name, colon, value = line.partition(": ")
        if not colon or name not in ("event", "data") or (event if name == "event" else data) is not None:
            raise WireError(f"a frame of one `event:` and one `data:` line at most is expected: {block[:120]!r}")
        if name == "event":
            event = value
        else:
            data = value
    if data is None:
        raise WireError(f"a frame without data: {block[:120]!r}")
    return Frame(event, data)


def _tagged(union: Any) -> dict[Any, type[pydantic.BaseModel]]:
    """The members of a union by each value that their ``type`` may have."""
    if isinstance(union, type) and issubclass(union, pydantic.BaseModel):
        return dict.fromkeys(get_args(union.model_fields["type"].annotation), union)
    members: dict[Any, type[pydantic.BaseModel]] = {}
    origin = get_origin(union)
    if origin in (Union, UnionType, Annotated):
        for inner in get_args(union)[: 1 if origin is Annotated else None]:
            members.update(_tagged(inner))
    return members


def _refuse_unknown(value: Any, path: str, extensions: Extensions) -> None:
    if isinstance(value, pydantic.BaseModel):
        name = type(value).__name__
        unknown = sorted((value.model_extra or {}).keys() - extensions.get(name, frozenset()))
        if unknown:
            raise WireError(f"{path}: {name} has no field {unknown[0]!r}")
        for field in type(value).model_fields:
            _refuse_unknown(getattr(value, field, None), f"{path}.{field}", extensions)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_unknown(inner, f"{path}[{index}]", extensions)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _refuse_unknown(inner, f"{path}.{key}", extensions)


def _differences(first: Any, second: Any, path: str, ignored: frozenset[str]) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted((first.keys() | second.keys()) - ignored):
            yield from _differences(first.get(key), second.get(key), f"{path}.{key}", ignored)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]", ignored)
    elif first != second:
        yield path, first, second
