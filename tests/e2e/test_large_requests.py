"""Requests that are small on the wire and large within the server, beside a stream that must not notice them."""

import json
import threading
from collections.abc import Iterator
from typing import Any, Final

import httpx
import openai
import pytest

from stentor.loadtest.server_process import ServerProcess

pytestmark = pytest.mark.proof  # their messages: engine/scheduler/test_plan_size.py, engine/test_large_masks.py

NAME: Final = "made-up"
VOCABULARY: Final = 70_000
"""The highest ids take 5 bytes of a message."""
CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
TOKENS: Final = 300
LARGE: Final[dict[str, dict[str, Any]]] = {
    # 128 rows of 640 KiB each, where each brought its own
    "allowed tokens of many choices": {
        "n": 128,
        "allowed_token_ids": [VOCABULARY - 1 - at % 4000 for at in range(131_072)],
        "max_tokens": 2,
    },
    "bad words of many choices": {"n": 64, "bad_words": [f"6{word:04} " * 170 for word in range(256)], "max_tokens": 2},
    "a prompt of many choices": {"n": 128, "prompt": [VOCABULARY - 1] * 1500, "max_tokens": 1},
    "log-probabilities of prompts": {
        "prompt": [[60_000 + at] * 500 for at in range(4)],
        "prompt_logprobs": 20,
        "max_tokens": 1,
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("made-up")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    options = ["--load-format", "dummy", "--kv-cache-memory", "32MiB", "--max-num-seqs", "256"]
    with ServerProcess([str(folder), "--served-model-name", NAME, *options]) as running:
        yield running


def _deaths(port: int) -> list[str]:
    lines = httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()
    return [line for line in lines if "restarts_total{" in line or line.startswith("stentor:poisoned")]


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", LARGE)
def test_what_is_large_within_the_server_is_answered_and_a_stream_beside_it_goes_on(
    server: ServerProcess, name: str
) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0)
    before = _deaths(server.port)
    assert before
    body = {"model": NAME, "prompt": [5, 6, 7], "ignore_eos": True, "temperature": 0, **LARGE[name]}
    got: list[str] = []
    begun = threading.Event()

    def listen() -> None:
        rules: dict[str, Any] = {"max_tokens": TOKENS, "extra_body": {"ignore_eos": True}}
        for chunk in client.completions.create(model=NAME, prompt=[9, 8, 7], stream=True, **rules):
            got.extend(choice.finish_reason or "" for choice in chunk.choices)
            begun.set()

    beside = threading.Thread(target=listen)
    beside.start()
    assert begun.wait(30)
    answer = httpx.post(f"http://127.0.0.1:{server.port}/v1/completions", json=body, timeout=60)
    beside.join(60)
    assert answer.status_code == 200, answer.text[:500]
    choices = answer.json()["choices"]
    assert len(choices) == body.get("n", 4)
    assert all(choice["finish_reason"] == "length" for choice in choices)
    if "prompt_logprobs" in body:
        assert [len(choice["prompt_logprobs"]) for choice in choices] == [500] * 4
    assert got[-1] == "length", "the stream beside it did not come to its end"
    assert _deaths(server.port) == before
