"""The generated pages of docs/reference are what the program prints, and what they say of fields is true."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from stentor.protocols.anthropic.request import MessagesRequest
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.completions import CompletionRequest
from stentor.protocols.openai.responses.request import ResponseRequest
from stentor.protocols.openai.transcription import TranscriptionForm, TranslationForm
from stentor.protocols.pooling.embeddings import EmbeddingRequest
from stentor.server.app.application import create_app
from stentor.server.main.reference_pages import PAGES
from stentor.server.main.request_fields import REQUESTS, Request
from stentor.tests.fakes import fake_state

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
HELLO = [{"role": "user", "content": "hello"}]
CHECKED: dict[type[msgspec.Struct], tuple[dict[str, Any], Callable[[Any], object]]] = {
    ChatRequest: ({"messages": HELLO}, lambda body: body.check(Limits())),
    CompletionRequest: ({"prompt": "hello"}, lambda body: body.check(Limits())),
    ResponseRequest: ({"input": "hello"}, lambda body: body.check(Limits())),
    MessagesRequest: (
        {"model": "m", "max_tokens": 1, "messages": HELLO},
        lambda body: body.check(thinks_between_calls=False),
    ),
    EmbeddingRequest: ({"input": "hello"}, lambda body: body.check(Limits())),
    TranscriptionForm: ({}, lambda body: body.check()),
    TranslationForm: ({}, lambda body: body.check()),
}
"""By the type of a request: the least that it may say, and what refuses it."""
SAMPLES = (True, 1, "x", ["x"], [{"a": 1}], {"a": 1})


def _fields(refused: bool) -> Iterator[Any]:
    for request in REQUESTS:
        if request.type in CHECKED:
            for field in request.facts.refused if refused else request.facts.ignored:
                yield pytest.param(request, field, id=f"{request.endpoints[0]}-{field}")


def _check(request: Request, **fields: object) -> None:
    least, check = CHECKED[request.type]
    check(msgspec.convert(least | fields, request.type))


def _value(request: Request, field: str) -> object:
    """A value of the field's type that says something."""
    for sample in SAMPLES:
        try:
            msgspec.convert(CHECKED[request.type][0] | {field: sample}, request.type)
        except msgspec.ValidationError:
            continue
        return sample
    raise AssertionError(f"no sample fits `{field}`")


@pytest.mark.parametrize("name", [*PAGES])
def test_a_generated_page_is_what_the_program_prints(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make reference`"


@pytest.mark.parametrize("request_type", [*CHECKED])
def test_the_least_that_a_request_may_say_is_accepted(request_type: type[msgspec.Struct]) -> None:
    (request,) = [request for request in REQUESTS if request.type is request_type]
    _check(request)


@pytest.mark.parametrize(("request_", "field"), [*_fields(refused=True)])
def test_a_field_that_is_said_to_be_refused_is_refused_by_its_name(request_: Request, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        _check(request_, **{field: _value(request_, field)})
    assert refused.value.param == field


@pytest.mark.parametrize(("request_", "field"), [*_fields(refused=False)])
def test_a_field_that_is_said_to_be_ignored_is_accepted(request_: Request, field: str) -> None:
    outer, _, inner = field.partition(".")
    accepted = 0
    for sample in (True, "auto", "low", *SAMPLES):
        said = {outer: {inner: sample}} if inner else {outer: sample}
        try:
            _check(request_, stream=True, **said)
            accepted += 1
        except msgspec.ValidationError:  # of another type
            continue
    assert accepted


@pytest.mark.anyio
async def test_every_request_of_the_api_s_document_is_listed_with_its_fields() -> None:
    transport = httpx.ASGITransport(create_app(fake_state()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        document = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    there: dict[str, set[frozenset[str]]] = {}
    for path, methods in document["paths"].items():
        body = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            names = [one["$ref"].rpartition("/")[2] for one in body["schema"].get("anyOf", [body["schema"]])]
            there[path] = {frozenset(schemas[name]["properties"]) for name in names}
    listed: dict[str, set[frozenset[str]]] = {}
    for request in REQUESTS:
        for endpoint in () if request.file_field else request.endpoints:
            fields = frozenset(field.encode_name for field in msgspec.structs.fields(request.type))
            listed.setdefault(endpoint, set()).add(fields)
    assert listed == there
