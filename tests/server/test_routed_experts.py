"""``routed_experts``: who is told, in which form, and what is refused."""

import base64
import io
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from stentor.protocols.common.limits import Limits
from stentor.protocols.ipc.steps import ExpertShape
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory

pytestmark = pytest.mark.anyio

BYTES, WORDS = ExpertShape(3, 2, 1), ExpertShape(3, 2, 2)
PROMPT = [65 + number % 26 for number in range(40)]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {"input": "hello"}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 5}),
    (COMPLETIONS, {"prompt": PROMPT, "stream": True}),
    (CHAT, {"messages": HELLO, "stream": True}),
    (CHAT, {"messages": HELLO, "return_routed_experts": False}),
    (COMPLETIONS, {"prompt": PROMPT, "echo": True, "max_tokens": 0}),
]


async def post(engine: FakeEngine, path: str, limits: Limits | None = None, **body: Any) -> httpx.Response:
    async with in_memory(fake_state(engine, limits=limits or Limits())) as client:
        return await client.post(path, json=body)


def reported(choice: dict[str, Any]) -> npt.NDArray[np.integer[Any]]:
    found: npt.NDArray[np.integer[Any]] = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))
    return found


@pytest.mark.parametrize(("shape", "dtype"), [(BYTES, np.uint8), (WORDS, np.uint16)])
async def test_each_choice_has_an_array_of_positions_by_layers_by_experts(shape: ExpertShape, dtype: type) -> None:
    engine = FakeEngine(answer=says("hello"), experts=shape)
    answer = await post(engine, COMPLETIONS, prompt=[PROMPT, PROMPT[:9]], n=2, max_tokens=5)
    lengths = [len(reported(choice)) for choice in answer.json()["choices"]]
    assert lengths == [40 + 5 - 1] * 2 + [9 + 5 - 1] * 2
    first = reported(answer.json()["choices"][0])
    assert first.dtype == dtype
    assert first.shape[1:] == (3, 2)
    assert (first[7] & 255 == 7).all()
    (choice,) = (await post(engine, CHAT, messages=HELLO, max_tokens=5)).json()["choices"]
    assert len(reported(choice)) == len(engine.streams[-1].prompt) + 5 - 1


async def test_positions_that_the_client_has_are_left_out() -> None:
    engine = FakeEngine(answer=says("hello"), experts=BYTES)
    answer = await post(engine, COMPLETIONS, prompt=PROMPT, max_tokens=5, routed_experts_prompt_start=40)
    found = reported(answer.json()["choices"][0])
    assert found[:, 0, 0].tolist() == [40, 41, 42, 43]


@pytest.mark.parametrize(("path", "body"), OTHERS)
async def test_who_cannot_be_told_or_declines_costs_the_engine_nothing(path: str, body: dict[str, Any]) -> None:
    engine = FakeEngine(answer=says("hello"), experts=BYTES)
    answer = await post(engine, path, model="fake", **body)
    assert answer.status_code == 200, answer.text
    assert "routed_experts" not in answer.text
    assert [stream.params.routed_experts for stream in engine.streams] == [None] * len(engine.streams)


@pytest.mark.parametrize(
    ("experts", "path", "body", "param"),
    [
        (None, COMPLETIONS, {"prompt": PROMPT, "return_routed_experts": True}, "return_routed_experts"),
        (None, CHAT, {"messages": HELLO, "routed_experts_prompt_start": 1}, "routed_experts_prompt_start"),
        (BYTES, CHAT, {"messages": HELLO, "stream": True, "return_routed_experts": True}, "return_routed_experts"),
        (BYTES, COMPLETIONS, {"prompt": PROMPT, "routed_experts_prompt_start": 41}, "routed_experts_prompt_start"),
        (BYTES, CHAT, {"messages": HELLO, "routed_experts_prompt_start": -1}, "routed_experts_prompt_start"),
    ],
)
async def test_what_cannot_be_told_is_refused_by_name(
    experts: ExpertShape | None, path: str, body: dict[str, Any], param: str
) -> None:
    engine = FakeEngine(experts=experts)
    answer = await post(engine, path, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert not engine.streams


async def test_experts_count_to_the_size_of_an_answer_before_anything_is_computed() -> None:
    large = ExpertShape(48, 8, 1)
    size = Limits(max_answer_bytes=100_000)
    engine = FakeEngine(max_model_len=4096, experts=large)
    fields: dict[str, Any] = {"prompt": PROMPT * 10, "max_tokens": 5}
    refused = await post(engine, COMPLETIONS, size, **fields)
    assert refused.json()["error"]["code"] == "response_too_large"
    assert not engine.streams
    rest = await post(engine, COMPLETIONS, size, **fields, routed_experts_prompt_start=300)
    assert len(reported(rest.json()["choices"][0])) == 100 + 5 - 1
    refused = await post(engine, CHAT, size, messages=HELLO, max_tokens=400)
    assert refused.json()["error"]["param"] == "max_tokens"
    fitting = await post(engine, CHAT, size, messages=HELLO)
    assert fitting.status_code == 200, "as many tokens as the answer has room for"
