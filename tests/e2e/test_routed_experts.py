"""``routed_experts`` of a real server, in vLLM's form: what comes is what another request brings of the same tokens."""

import base64
import io
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest

from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.conftest import NAME
from stentor.tests.e2e.processes import below, eventually
from stentor.tests.support.metrics import metric

LAYERS, EXPERTS, TOP_K = 2, 6, 2


@pytest.fixture
def client(talker: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{talker.port}/v1", api_key="unused", max_retries=0)


def experts(choice: Any) -> npt.NDArray[np.uint8]:
    """[positions, layers, top_k], read as vLLM's clients do."""
    found: npt.NDArray[np.uint8] = np.load(io.BytesIO(base64.b64decode(choice.model_extra["routed_experts"])))
    assert found.dtype == np.uint8
    assert found.shape[1:] == (LAYERS, TOP_K)
    assert found.max() < EXPERTS
    assert all(len(set(layer)) == TOP_K for position in found for layer in position)
    return found


def complete(client: openai.OpenAI, prompt: list[int], *, max_tokens: int = 12, **fields: Any) -> Any:
    extra = {"return_token_ids": True, "ignore_eos": True, **fields}
    return client.completions.create(model=NAME, prompt=prompt, max_tokens=max_tokens, temperature=0, extra_body=extra)


def test_a_completion_tells_the_experts_of_all_but_its_last_token(client: openai.OpenAI) -> None:
    prompt = [*range(100, 140)]
    choice = complete(client, prompt).choices[0]
    found, tokens = experts(choice), choice.model_extra["token_ids"]
    assert len(found) == len(prompt) + 12 - 1
    # the same tokens as a prompt, in chunks of another size and with a prefix that is cached
    again = complete(client, [*prompt, *tokens[:-1]], max_tokens=1).choices[0]
    assert (experts(again) == found).all()
    later = complete(client, prompt, routed_experts_prompt_start=32)
    assert (experts(later.choices[0]) == found[32:]).all()
    assert later.usage.prompt_tokens_details.cached_tokens == 32
    none = complete(client, prompt, return_routed_experts=False).choices[0]
    assert "routed_experts" not in none.model_extra


def test_each_choice_of_a_conversation_tells_its_own(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "Hello"}], max_tokens=8, n=2, seed=5
    )
    assert answer.usage is not None
    first, second = map(experts, answer.choices)
    prompt = answer.usage.prompt_tokens
    assert (first[:prompt] == second[:prompt]).all()
    assert len(first) >= prompt


def test_a_stop_string_ends_them_with_its_tokens(client: openai.OpenAI) -> None:
    prompt = [*range(200, 220)]
    whole = complete(client, prompt, max_tokens=30).choices[0]
    stop = whole.text[len(whole.text) // 2 :][:3]
    cut = complete(client, prompt, max_tokens=30, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop"
    count = len(prompt) + len(cut.model_extra["token_ids"]) - 1
    assert (experts(cut) == experts(whole)[:count]).all()
    assert len(experts(cut)) == count


def has_drawn(port: int, wanted: float) -> bool:
    return metric(port, "generation_tokens_total") > wanted


@pytest.mark.proof  # tests/parity/test_routed_experts.py loses workers too
def test_a_worker_and_an_engine_that_are_lost_change_none_of_them(talker: ServerProcess, client: openai.OpenAI) -> None:
    prompt = [*range(300, 340)]
    undisturbed = complete(client, prompt, max_tokens=800).choices[0]
    with ThreadPoolExecutor() as threads:
        for name in ("worker", "engine"):
            recovered = metric(talker.port, "recovered_requests_total")
            while metric(talker.port, "recovered_requests_total") == recovered:  # it may end before anything is killed
                wanted = metric(talker.port, "generation_tokens_total") + 5
                asked = threads.submit(complete, client, prompt, max_tokens=800)
                eventually(partial(has_drawn, talker.port, wanted), 120, "tokens have come")
                eventually(lambda: len(below(talker.pid, name)) == 1, 60, "there is one to kill")  # noqa: B023
                os.kill(below(talker.pid, name)[0], signal.SIGKILL)
                choice = asked.result(240).choices[0]
                assert choice.model_extra["token_ids"] == undisturbed.model_extra["token_ids"]
                assert (experts(choice) == experts(undisturbed)).all()


def refusal(url: str, **fields: Any) -> dict[str, Any]:
    body = {"model": NAME, "prompt": [5, 6, 7], "max_tokens": 4, **fields}
    answer = httpx.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_what_cannot_be_told_is_refused_by_the_name_of_its_field(talker: ServerProcess) -> None:
    url = f"http://127.0.0.1:{talker.port}"
    assert refusal(url, return_routed_experts=True, stream=True)["param"] == "return_routed_experts"
    assert refusal(url, routed_experts_prompt_start=4)["param"] == "routed_experts_prompt_start"
    assert refusal(url, routed_experts_prompt_start=-1)["param"] == "routed_experts_prompt_start"
    assert refusal(url, max_tokens=0, echo=True, return_routed_experts=True)["param"] == "return_routed_experts"


def test_a_server_that_tells_none_refuses_to_be_asked(server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{server.port}"
    for fields in ({"return_routed_experts": True}, {"routed_experts_prompt_start": 1}):
        error = refusal(url, **fields)
        assert error["param"] in fields
        assert "--enable-return-routed-experts" in error["message"]
    body = {"model": NAME, "prompt": [5, 6, 7], "max_tokens": 4, "return_routed_experts": False}
    answer = httpx.post(f"{url}/v1/completions", json=body)
    assert "routed_experts" not in answer.json()["choices"][0]
