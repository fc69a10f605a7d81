"""The demo model's vectors through HTTP: beside transformers' own, through the SDK, and while others ask."""

import os
import signal
import threading
from typing import Any, Final, get_args

import httpx
import numpy as np
import openai
import pytest
import torch
from openai.types import CreateEmbeddingResponse

from stentor.engine.loading.download.hub import DEMO_EMBEDDING_MODEL, resolve_model
from stentor.loadtest.server_process import ServerProcess
from stentor.loadtest.serving.measure import parse_metrics
from stentor.protocols.ipc.actors import Resource
from stentor.tests.e2e.conftest import EMBEDDING as NAME
from stentor.tests.e2e.conftest import NAME as CHAT
from stentor.tests.e2e.processes import engine_of, eventually, worker_of
from stentor.tests.support.metrics import metric_in
from stentor.tests.wire.validate import EMBEDDING_EXTENSIONS, check_object

TEXTS: Final = (
    "The cat sits outside.",
    "A feline rests in the garden.",
    "Stocks fell sharply on Tuesday.",
    "",
    "👩‍🚀 in space, 日本語のテキスト, ünïcödé",
    "word " * 90,
)


def theirs(texts: list[str]) -> Any:
    """The mean of transformers' hidden states, normalised, one text at a time."""
    from transformers import AutoModel, AutoTokenizer

    folder = resolve_model(DEMO_EMBEDDING_MODEL)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = []
    with torch.inference_mode():
        for text in texts:
            given = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
            mean = model(**given).last_hidden_state[0].mean(0)
            found.append(torch.nn.functional.normalize(mean, dim=0).numpy())
    return np.stack(found)


def test_vectors_are_those_of_transformers_whatever_shares_their_batch(client: openai.OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(model=NAME, input=[*TEXTS], encoding_format="float")
    whole = check_object(CreateEmbeddingResponse, raw.text, EMBEDDING_EXTENSIONS)
    together = np.array([each.embedding for each in whole.data])
    assert np.abs(together - theirs([*TEXTS])).max() < 1e-4
    for place, text in enumerate(TEXTS):
        alone = client.embeddings.create(model=NAME, input=text)  # base64, by default
        assert np.abs(np.array(alone.data[0].embedding) - together[place]).max() < 1e-5
    assert together[0] @ together[1] > 0.4 > together[0] @ together[2]
    assert whole.usage.prompt_tokens == sum(
        client.embeddings.create(model=NAME, input=text).usage.prompt_tokens for text in TEXTS
    )


def test_a_long_text_is_refused_or_cut_as_sentence_transformers_cuts_it(client: openai.OpenAI) -> None:
    long = "the sea is " * 200
    with pytest.raises(openai.BadRequestError, match="takes at most 256") as refused:
        client.embeddings.create(model=NAME, input=long)
    assert refused.value.param == "input"
    cut = client.embeddings.create(model=NAME, input=long, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.prompt_tokens == 256
    assert np.abs(np.array(cut.data[0].embedding) - theirs([long])[0]).max() < 1e-4


def test_token_ids_of_another_model_are_told(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        client.embeddings.create(model=NAME, input=[[9906, 1917, 100257]])
    own = client.embeddings.create(model=NAME, input=[[101, 1996, 2712, 102]])
    text = client.embeddings.create(model=NAME, input="the sea")
    assert own.data[0].embedding == text.data[0].embedding


def test_documents_are_ranked_by_meaning(http: httpx.Client) -> None:
    documents = ["Paris is the capital of France.", "Cats are small carnivorous animals.", "The sun is a star."]
    ranked = http.post("/v2/rerank", json={"model": NAME, "query": "what is a cat?", "documents": documents}).json()
    assert ranked["results"][0]["index"] == 1
    scored = http.post("/score", json={"queries": "what is a cat?", "documents": documents}).json()
    assert max(scored["data"], key=lambda each: each["score"])["index"] == 1


@pytest.mark.proof  # within one process: tests/server/pooling/test_running.py
def test_who_asks_for_one_text_does_not_wait_for_a_job_of_many(http: httpx.Client, server: ServerProcess) -> None:
    """Counted in texts of the job, so that a slow machine changes nothing: a single text is done first."""

    def bulk() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=150) as client:
            statuses.append(client.post("/v1/embeddings", json={"input": ["the sea is " * 20] * texts}).status_code)

    def done() -> int:
        return _texts_done(http) - before

    texts, statuses = 160, list[int]()
    before = _texts_done(http)
    thread = threading.Thread(target=bulk)
    thread.start()
    try:
        while not done():
            assert thread.is_alive(), statuses
        assert http.post("/v1/embeddings", json={"input": "once upon a time"}).status_code == 200
        meanwhile = done()
    finally:
        thread.join()
    assert statuses == [200]
    assert done() == texts + 1
    assert meanwhile < texts / 2, "of the job's texts were done before a single one"


def _texts_done(http: httpx.Client) -> int:
    return int(metric_in(http.get("/metrics").text, "embedding_texts_total"))


def _restarts(http: httpx.Client, process: str) -> float:
    return parse_metrics(http.get("/metrics").text)[f'stentor:{process}_restarts_total{{model_name="{NAME}"}}']


JOB: Final = tuple(f"the sea is {number} " + "deep " * (number % 30) for number in range(200))


@pytest.fixture(scope="module")
def undisturbed(http: httpx.Client) -> Any:
    """The vectors of the job without a kill."""
    data = http.post("/v1/embeddings", json={"model": NAME, "input": JOB}).json()["data"]
    return np.array([each["embedding"] for each in data])


@pytest.mark.proof  # without the server: tests/engine/test_pooling.py
@pytest.mark.parametrize("process", ["worker", "engine"])
def test_a_job_goes_on_when_what_works_on_it_is_killed(
    http: httpx.Client, client: openai.OpenAI, server: ServerProcess, undisturbed: Any, process: str
) -> None:
    body = {"model": NAME, "input": JOB}
    restarts, texts_before = _restarts(http, process), _texts_done(http)
    jobs: list[Any] = []
    killed = threading.Event()

    def ask() -> None:
        while not killed.is_set():  # so that there is always one to go on
            jobs.append(http.post("/v1/embeddings", json=body).json())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        # behind the chat model and the transcription model
        victim = (worker_of if process == "worker" else engine_of)(server.pid, 2)
        eventually(lambda: _texts_done(http) > texts_before, 60, "the job has begun")
        os.kill(victim, signal.SIGKILL)
        assert _says_four_tokens(client)
    finally:
        killed.set()
        thread.join()
    eventually(lambda: _restarts(http, process) == restarts + 1, 60, "the restart is counted")
    for job in jobs:
        assert [each["index"] for each in job["data"]] == [*range(len(JOB))]
        assert np.abs(np.array([each["embedding"] for each in job["data"]]) - undisturbed).max() < 1e-5


def test_what_a_client_leaves_behind_is_dropped(http: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/embeddings", json={"input": ["the sea is " * 50] * 1000}, timeout=httpx.Timeout(60, read=0.5))

    def dropped() -> bool:
        page = http.get("/metrics").text
        lines = [line for line in page.splitlines() if f'model_name="{NAME}"' in line and "num_requests_" in line]
        assert len(lines) == 2 + len(get_args(Resource)), "running, waiting, and that by reason"
        return all(line.endswith(" 0.0") for line in lines)

    eventually(dropped, 60, "it is dropped")


def test_the_chat_model_beside_it_answers(client: openai.OpenAI) -> None:
    assert _says_four_tokens(client)


def _says_four_tokens(client: openai.OpenAI) -> bool:
    """Whether the chat model answers; it may draw no end before."""
    answer = client.chat.completions.create(
        model=CHAT,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=4,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    return (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 4)
