"""Models of several kinds on one port, as clients meet them."""

import pytest
from openai.types import Model

from stentor.server.app.state import ServerState
from stentor.server.config.model_registry import ModelRegistry, ModelRole, ServedModel
from stentor.server.observability.metrics import Metrics
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory

pytestmark = pytest.mark.anyio

CATALOGUE = ModelRegistry(
    [
        ServedModel("chat", ("fake/model", "fake"), "pypi:fake"),
        ServedModel("transcription", ("whisper-1", "ears"), "pypi:ears"),
        ServedModel("speech", ("tts-1",), "pypi:voice"),
    ]
)


def state_of(chat: FakeEngine, ears: FakeEngine) -> ServerState:
    runners: dict[ModelRole, FakeEngine] = {"transcription": ears}
    return fake_state(chat, registry=CATALOGUE, runners=runners, root="pypi:fake")


async def test_all_models_are_listed_under_all_their_names() -> None:
    async with in_memory(state_of(FakeEngine(), FakeEngine())) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        theirs = (await client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
        one = (await client.get("/v1/models/ears")).json()
        missing = await client.get("/v1/models/nose")
    assert [card["id"] for card in listed] == ["fake/model", "fake", "whisper-1", "ears", "tts-1"]
    assert [card["root"] for card in listed] == ["pypi:fake", "pypi:fake", "pypi:ears", "pypi:ears", "pypi:voice"]
    assert [card["max_model_len"] for card in listed] == [512, 512, None, None, None]
    for card in listed:
        Model.model_validate(card, strict=True)
    assert one == listed[3]
    assert [card["id"] for card in theirs["data"]] == [card["id"] for card in listed]
    assert (theirs["first_id"], theirs["last_id"]) == ("fake/model", "tts-1")
    assert missing.status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO}),
        (COMPLETIONS, {"prompt": "a"}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 2}),
        ("/v1/responses", {"input": "hello"}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
async def test_a_model_that_does_not_chat_is_refused_by_what_chats(path: str, body: dict[str, object]) -> None:
    engine = FakeEngine()
    async with in_memory(state_of(engine, FakeEngine())) as client:
        refused = await client.post(path, json={"model": "ears", **body})
        missing = await client.post(path, json={"model": "nose", **body})
    assert refused.status_code == 400
    said = "`ears` is a transcription model; this needs a chat model: use `fake/model`."
    assert refused.json()["error"]["message"].removeprefix("`model`: ") == said
    assert missing.status_code == 404
    assert not engine.streams


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO}),
        (COMPLETIONS, {"prompt": "a"}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 2}),
        ("/v1/responses", {"input": "hello"}),
        ("/api/chat", {"messages": HELLO, "stream": False, "options": {"num_predict": 2}}),
    ],
)
async def test_a_name_that_fits_a_pattern_is_answered_by_the_model_under_that_name(
    path: str, body: dict[str, object]
) -> None:
    registry = ModelRegistry([ServedModel("chat", ("fake/model",), patterns=("claude-*", "gpt-*"))])
    async with in_memory(fake_state(registry=registry)) as client:
        answer = await client.post(path, json={"model": "gpt-5.2-codex", **body})
        missing = await client.post(path, json={"model": "llama3", **body})
        listed = (await client.get("/v1/models")).json()["data"]
        one = (await client.get("/v1/models/claude-opus-4-8")).json()
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "gpt-5.2-codex"
    assert missing.status_code == 404
    assert [card["id"] for card in listed] == ["fake/model"], "what is shown are names, not patterns"
    assert (one["id"], one["root"]) == ("claude-opus-4-8", "fake/model")


async def test_health_waits_for_every_model_and_a_model_that_is_there_serves_meanwhile() -> None:
    chat, ears = FakeEngine(), FakeEngine()
    ready, ears.ready = ears.ready, None
    async with in_memory(state_of(chat, ears)) as client:
        assert (await client.get("/health")).json()["error"]["code"] == "starting"
        assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 2})).status_code == 200
        ears.ready, chat.ready = chat.ready, None
        assert (await client.get("/health")).json()["error"]["code"] == "starting"
        assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 2})).status_code == 503
        chat.ready = ready
        assert (await client.get("/health")).status_code == 200
        ears.stalled = "the worker process was lost"
        assert (await client.get("/health")).json()["error"]["code"] == "recovering"
        assert (await client.get("/ping")).status_code == 200
        assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 2})).status_code == 200


async def test_once_one_engine_is_given_up_the_server_says_that_it_ends() -> None:
    ears = FakeEngine()
    async with in_memory(state_of(FakeEngine(), ears)) as client:
        ears.failure = "the worker died too often"
        for path in ("/ping", "/health"):
            gone = await client.get(path)
            assert (gone.status_code, gone.json()["error"]["code"]) == (503, "failed")


def test_figures_of_an_engine_carry_the_name_of_its_model() -> None:
    chat, ears = FakeEngine(), FakeEngine()
    ears.engine_restarts = 3
    metrics = Metrics("fake/model", chat, {"whisper-1": ears})
    metrics.recovery["whisper-1"]["worker"].observe(0.25)
    page = metrics.render().decode()
    assert 'stentor:engine_restarts_total{model_name="whisper-1"} 3.0' in page
    assert 'stentor:engine_restarts_total{model_name="fake/model"} 0.0' in page
    assert 'stentor:recovery_seconds_count{model_name="whisper-1",process="worker"} 1.0' in page
    assert 'stentor:recovery_seconds_count{model_name="fake/model",process="worker"} 0.0' in page
    assert page.count("# TYPE stentor:num_requests_running gauge") == 1
    assert page.count('stentor:num_requests_running{model_name="') == 2
    assert page.count("stentor:cache_config_info{") == 2
