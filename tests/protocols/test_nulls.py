"""A null where a field may be left out means that it was left out, in every request of every protocol."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from stentor.protocols import anthropic, openai, pooling
from stentor.protocols.anthropic.request import messages_decoder
from stentor.protocols.common.decoding import converted, decode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai import chat
from stentor.protocols.openai.messages import check_messages
from stentor.protocols.openai.realtime import client
from stentor.server.batches.lines import read_request

LIMITS = Limits()
HELLO = {"role": "user", "content": "hi"}


def _structs() -> Iterator[type[msgspec.Struct]]:
    for package in (openai, anthropic, pooling):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            loaded = importlib.import_module(module.name)
            for value in vars(loaded).values():
                if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.name:
                    yield value


def _decoders() -> Iterator[msgspec.json.Decoder[Any]]:
    for package in (openai, anthropic, pooling):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            found = vars(importlib.import_module(module.name)).values()
            yield from (value for value in found if isinstance(value, msgspec.json.Decoder))


STRUCTS = sorted(_structs(), key=lambda found: (found.__module__, found.__qualname__))
DECODERS = list({id(decoder): decoder for decoder in _decoders()}.values())


def least(kind: inspect.Type) -> Any:
    """JSON that ``kind`` takes, with as few fields as may be."""
    match kind:
        case inspect.Metadata():
            return least(kind.type)
        case inspect.UnionType():
            return least(next(member for member in kind.types if not isinstance(member, inspect.NoneType)))
        case inspect.StructType():
            return least_struct(kind)
        case inspect.CollectionType():
            return [least(kind.item_type)] * (kind.min_length or 0)
        case inspect.DictType() | inspect.AnyType():
            return {}
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.BoolType():
            return False
        case inspect.IntType() | inspect.FloatType():
            return kind.ge if kind.ge is not None else 1
        case inspect.StrType():
            return "x" * (kind.min_length or 1)
        case inspect.NoneType():
            return None
    raise AssertionError(f"nothing is known of {kind}")


def least_struct(kind: inspect.StructType) -> dict[str, Any]:
    made = {field.encode_name: least(field.type) for field in kind.fields if field.required}
    return made if kind.tag_field is None else {kind.tag_field: kind.tag, **made}


def with_nulls(kind: inspect.Type, made: Any) -> Iterator[Any]:
    """``made`` once for each field below that may be left out, with null there."""
    match kind:
        case inspect.Metadata():
            yield from with_nulls(kind.type, made)
        case inspect.UnionType():
            for member in kind.types:
                if _struct_in(member) is not None:
                    yield from with_nulls(member, least(member))
        case inspect.CollectionType() if _struct_in(kind.item_type) is not None:
            yield from ([inner] for inner in with_nulls(kind.item_type, least(kind.item_type)))
        case inspect.StructType():
            for field in kind.fields:
                if not field.required:
                    yield {**made, field.encode_name: None}
                if _struct_in(field.type) is not None:
                    for inner in with_nulls(field.type, least(field.type)):
                        yield {**made, field.encode_name: inner}


def _struct_in(kind: inspect.Type) -> inspect.Type | None:
    match kind:
        case inspect.Metadata():
            return _struct_in(kind.type)
        case inspect.UnionType():
            return next((member for member in kind.types if _struct_in(member) is not None), None)
        case inspect.CollectionType():
            return _struct_in(kind.item_type)
    return kind if isinstance(kind, inspect.StructType) else None


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: str(getattr(decoder.type, "__name__", "union")))
def test_null_is_taken_wherever_a_field_of_a_request_may_be_left_out(decoder: msgspec.json.Decoder[Any]) -> None:
    kind = inspect.type_info(decoder.type)
    bodies = list(with_nulls(kind, least(kind)))
    for body in bodies:
        decode(decoder, msgspec.json.encode(body), LIMITS)
    assert bodies or not isinstance(kind, inspect.StructType) or all(field.required for field in kind.fields)


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__qualname__)
def test_null_is_the_default_where_it_is_no_value_of_the_field(struct: type[msgspec.Struct]) -> None:
    kind = inspect.type_info(struct)
    assert isinstance(kind, inspect.StructType)
    bare = least_struct(kind)
    expected = converted(bare, struct, "")
    for field in kind.fields:
        if field.required:
            continue
        found = converted({**bare, field.encode_name: None}, struct, "")
        assert getattr(found, field.name) in (None, getattr(expected, field.name)), field.name


def test_null_in_a_field_that_is_required_is_told_as_missing() -> None:
    with pytest.raises(BadRequest) as refused:
        decode(
            messages_decoder,
            b'{"model": null, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}',
            LIMITS,
        )
    assert (refused.value.param, refused.value.code) == ("model", "missing_required_parameter")


def test_the_nulls_of_a_clients_own_objects_stay() -> None:
    body = {"messages": [HELLO], "ignore_eos": None, "chat_template_kwargs": {"a": None}, "documents": [{"b": None}]}
    found = decode(chat.decoder, msgspec.json.encode(body), LIMITS)
    assert (found.ignore_eos, found.chat_template_kwargs, found.documents) == (False, {"a": None}, [{"b": None}])


def test_what_is_wrong_beside_a_null_is_named_all_the_same() -> None:
    body = {"messages": [HELLO], "ignore_eos": None, "stream_options": {"include_usage": 5}}
    with pytest.raises(BadRequest) as refused:
        decode(chat.decoder, msgspec.json.encode(body), LIMITS)
    assert refused.value.param == "stream_options.include_usage"
    with pytest.raises(BadRequest) as refused:
        decode(chat.decoder, b'{"messages": [null], "ignore_eos": null}', LIMITS)
    assert refused.value.param == "messages[0]"


def test_a_body_without_a_null_in_the_wrong_place_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.protocols.common.decoding.without_nulls", None)
    decode(chat.decoder, msgspec.json.encode({"messages": [HELLO], "stop": None, "seed": None}), LIMITS)
    with pytest.raises(BadRequest):
        decode(chat.decoder, msgspec.json.encode({"messages": [HELLO], "seed": "null"}), LIMITS)


def test_an_event_of_a_realtime_client_takes_nulls_too() -> None:
    assert client.decode_event(b'{"type":"session.update","session":null,"model":"m"}', LIMITS).foreign  # type: ignore[union-attr]  # that event


def test_a_line_of_a_batch_takes_nulls_too() -> None:
    line = b'{"custom_id":"a","url":"/v1/embeddings","body":{},"method":null}'
    assert read_request(line, 1).method == "POST"


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant", "content": ""}])
def test_an_assistant_that_said_nothing_is_shown_with_null(message: dict[str, Any]) -> None:
    check_messages([HELLO, message, HELLO])


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_nobody_else_may_say_nothing(role: str) -> None:
    with pytest.raises(BadRequest, match="content"):
        check_messages([{"role": role, "content": None, "tool_call_id": "a"}])
