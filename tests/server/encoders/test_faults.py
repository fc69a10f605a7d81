"""A choice that the request itself has made impossible is refused, and not told as a failure of the server's."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.deltas import Delta, Finish
from stentor.server.api.common.collect import collect
from stentor.server.common.errors import GenerationFailed, generation_error
from stentor.server.http.error_responses import describe


def _ended(fault: Any) -> Finish:
    field = "messages[0].content[1]" if fault == "media" else ""
    return Finish(0, "error", None, "Parser Error at 0xdeadbeef", fault, field=field)


async def _collected(finish: Finish) -> None:
    async def batches() -> AsyncIterator[list[Delta]]:
        yield [finish]

    await collect(batches(), 1)


@pytest.mark.parametrize(
    ("fault", "param", "code"),
    [
        ("allowed_token_ids", "allowed_token_ids", "invalid_value"),
        ("bad_words", "bad_words", "invalid_value"),
        ("grammar", None, "grammar_too_complex"),
        ("media", "messages[0].content[1]", "invalid_value"),
    ],
)
def test_what_a_request_asks_for_in_vain_is_its_fault(fault: str, param: str | None, code: str) -> None:
    with pytest.raises(BadRequest) as refused:
        asyncio.run(_collected(_ended(fault)))
    status, body = describe(refused.value)
    assert (status, body.type, body.param, body.code) == (400, "invalid_request_error", param, code)
    assert "0xdeadbeef" not in body.message


def test_all_else_is_the_servers() -> None:
    with pytest.raises(GenerationFailed):
        asyncio.run(_collected(_ended("")))
    assert isinstance(generation_error(None), GenerationFailed)
