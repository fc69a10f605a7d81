"""Pause, resume, abort and the prefix cache's reset, over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from stentor.server.app.state import ServerState
from stentor.server.middleware.access_control import AccessControl
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, HELLO, in_memory, until
from stentor.tests.server.middleware.keyrings import keyring

pytestmark = pytest.mark.anyio

ADMIN = {"authorization": "Bearer root"}
CONTROLS = [
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/abort_requests"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/reset_mm_cache"),
    ("POST", "/reset_encoder_cache"),
    ("POST", "/start_profile"),
    ("POST", "/stop_profile"),
    ("POST", "/update_weights"),
    ("POST", "/update_weight_version"),
    ("GET", "/weight_info"),
    ("GET", "/get_world_size"),
    ("POST", "/collective_rpc"),
    ("POST", "/update_weights_from_disk"),
    ("POST", "/pause_generation"),
    ("POST", "/continue_generation"),
    ("POST", "/release_memory_occupation"),
    ("POST", "/resume_memory_occupation"),
    ("POST", "/abort_request"),
    ("POST", "/flush_cache"),
    ("GET", "/get_server_info"),
    ("GET", "/server_info"),
]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[httpx.AsyncClient, FakeEngine, ServerState]]:
    engine = FakeEngine(answer=says("hello there"))
    state = fake_state(engine, access=AccessControl(keys=keyring("user", admin=("root",))))
    async with in_memory(state) as client:
        client.headers.update(ADMIN)
        yield client, engine, state


def begin(client: httpx.AsyncClient, **headers: str) -> "asyncio.Task[httpx.Response]":
    body = {"messages": HELLO, "max_tokens": 20}
    return asyncio.create_task(client.post(CHAT, json=body, headers=headers))


async def hold(client: httpx.AsyncClient, engine: FakeEngine) -> "asyncio.Task[httpx.Response]":
    """A request that the engine has, and does not answer until its gate is opened."""
    engine.gate.clear()
    live = begin(client)
    await until(lambda: engine.streams)
    return live


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize(("method", "path"), CONTROLS)
async def test_controls_want_an_admin_key(method: str, path: str) -> None:
    async with serving() as (client, engine, _state):
        refused = await client.request(method, path, headers={"authorization": "Bearer user"})
        assert code(refused) == (403, "admin_key_required")
        assert engine.told == []
    async with in_memory(fake_state()) as client:
        assert code(await client.request(method, path)) == (403, "admin_closed")


@pytest.mark.parametrize("mode", ["abort", "wait"])
async def test_a_paused_server_refuses_requests_and_answers_probes_until_it_is_resumed(mode: str) -> None:
    async with serving() as (client, engine, state):
        assert (await client.get("/is_paused")).json() == {"is_paused": False}
        assert (await client.post(f"/pause?mode={mode}")).json() == {"status": "paused"}
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert engine.told[-2:] == ["pause", "reset_prefix_cache"]
        assert code(await begin(client)) == (503, "paused")
        assert (await client.get("/health")).status_code == 200
        assert state.metrics.rejected["paused"]._value.get() == 1
        assert (await client.post("/resume")).json() == {"status": "resumed"}
        assert (await client.get("/is_paused")).json() == {"is_paused": False}
        assert (await begin(client)).status_code == 200


async def test_abort_ends_what_is_live_with_an_error_that_is_not_tried_again() -> None:
    async with serving() as (client, engine, state):
        live = await hold(client, engine)
        assert (await client.post("/pause")).status_code == 200
        ended = await live
        assert code(ended) == (503, "aborted")
        assert ended.headers["x-should-retry"] == "false"
        assert engine.live == 0
        assert state.metrics.cut_off["aborted"]._value.get() == 1


async def test_wait_lets_what_is_live_come_to_its_end_first() -> None:
    async with serving() as (client, engine, state):
        live = await hold(client, engine)
        pausing = asyncio.create_task(client.post("/pause?mode=wait&clear_cache=false"))
        await until(lambda: state.admission.paused)
        assert code(await begin(client)) == (503, "paused")
        assert not pausing.done()
        engine.gate.set()
        assert (await live).json()["choices"][0]["message"]["content"] == "hello there"
        assert (await pausing).status_code == 200
        assert engine.told == ["pause"]


async def test_keep_lets_live_requests_and_new_ones_wait_and_loses_none() -> None:
    async with serving() as (client, engine, _state):
        live = await hold(client, engine)
        assert (await client.post("/pause?mode=keep")).status_code == 200
        engine.gate.set()
        assert engine.told == ["pause"], "and the cache stays"
        late = begin(client)
        await until(lambda: len(engine.streams) == 2)
        assert not live.done()
        await client.post("/resume")
        for answered in (await live, await late):
            assert answered.json()["choices"][0]["message"]["content"] == "hello there"


async def test_wait_lets_those_run_on_that_an_earlier_pause_had_kept() -> None:
    async with serving() as (client, engine, _state):
        await client.post("/pause?mode=keep")
        live = begin(client)
        await until(lambda: engine.streams)
        assert (await client.post("/pause?mode=wait&clear_cache=false")).json() == {"status": "paused"}
        assert (await live).status_code == 200
        assert engine.told == ["pause", "resume", "pause"]


async def test_a_resume_while_a_pause_waits_has_the_last_word() -> None:
    async with serving() as (client, engine, state):
        live = await hold(client, engine)
        pausing = asyncio.create_task(client.post("/pause?mode=wait"))
        await until(lambda: state.admission.paused)
        await client.post("/resume")
        assert (await pausing).json() == {"status": "resumed"}, "it waits for nobody any more"
        engine.gate.set()
        assert (await live).status_code == 200
        assert "pause" not in engine.told
        assert (await begin(client)).status_code == 200


@pytest.mark.parametrize("hurry", ["/sleep?mode=abort", "/pause?mode=abort", "/sleep?mode=keep", "/pause?mode=keep"])
async def test_a_sleep_that_waits_for_what_never_ends_is_overtaken_by_one_that_does_not_wait(hurry: str) -> None:
    async with serving() as (client, engine, state):
        live = await hold(client, engine)
        waiting = asyncio.create_task(client.post("/sleep?mode=wait"))
        await until(lambda: state.admission.paused)
        assert (await client.post(hurry)).status_code == 200
        assert (await waiting).json() == {"status": "sleeping", "level": 1}
        assert [told for told in engine.told if told != "reset_prefix_cache"] == ["pause", "sleep"]
        assert live.done() == ("abort" in hurry)
        await client.post("/wake_up")
        engine.gate.set()
        assert (await live).status_code == (503 if "abort" in hurry else 200)


@pytest.mark.parametrize("path", ["/sleep?level=0", "/sleep?level=1", "/pause"])
async def test_who_pauses_while_the_server_wakes_has_the_last_word(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (client, engine, state):
        await client.post("/sleep?mode=keep")
        ready = asyncio.Event()

        async def wake() -> None:
            engine.told.append("wake")
            await ready.wait()

        monkeypatch.setattr(engine, "wake", wake)
        waking = asyncio.create_task(client.post("/wake_up"))
        await until(lambda: "wake" in engine.told)
        again = asyncio.create_task(client.post("/wake_up"))
        pausing = asyncio.create_task(client.post(path))
        await until(lambda: state.admission.paused)
        assert not again.done(), "it would tell of workers that are not there yet"
        ready.set()
        for each in (waking, again, pausing):
            assert (await each).status_code == 200
        assert state.admission.paused
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert "resume" not in engine.told
        assert engine.told.count("sleep") == (2 if path == "/sleep?level=1" else 1)


@pytest.mark.parametrize(("level", "told", "state"), [(1, "sleep", "weights_offloaded"), (2, "discard", "discard_all")])
async def test_a_server_that_sleeps_refuses_requests_until_it_is_woken(level: int, told: str, state: str) -> None:
    async with serving() as (client, engine, _state):
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert (await client.post(f"/sleep?level={level}")).json() == {"status": "sleeping", "level": level}
        assert engine.told == ["pause", told]
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert (await client.get("/health")).status_code == 200
        page = (await client.get("/metrics")).text
        assert f'engine_sleep_state{{model_name="fake/model",sleep_state="{state}"}} 1.0' in page
        assert code(await begin(client)) == (503, "paused")
        for path in ("/resume", "/pause?mode=wait"):
            assert code(await client.post(path)) == (400, "asleep")
        assert (await client.post("/wake_up")).json() == {"status": "awake"}
        assert engine.told == ["pause", told, "wake", "resume"]
        page = (await client.get("/metrics")).text
        assert 'engine_sleep_state{model_name="fake/model",sleep_state="awake"} 1.0' in page
        for operation in ("sleep", "wake_up"):
            count = (
                f'sleep_mode_operation_duration_seconds_count{{model_name="fake/model",operation="{operation}"}} 1.0'
            )
            assert count in page
        assert (await begin(client)).status_code == 200


async def test_it_wakes_once_all_of_its_parts_were_named() -> None:
    async with serving() as (client, engine, _state):
        await client.post("/sleep?level=1&mode=keep")
        for tags in ("weights", "weights", "scheduling"):
            woken = await client.post(f"/wake_up?tags={tags}")
            assert woken.json() == {"status": "sleeping", "level": 1}
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert engine.told == ["pause", "sleep"]
        assert (await client.post("/wake_up?tags=kv_cache")).json() == {"status": "awake"}
        assert engine.told == ["pause", "sleep", "wake", "resume"]
        assert (await client.post("/wake_up")).json() == {"status": "awake"}, "it is awake"
        assert engine.told == ["pause", "sleep", "wake", "resume"]


async def test_a_sleep_can_be_deepened_and_of_level_0_is_a_pause() -> None:
    async with serving() as (client, engine, _state):
        for level in (0, 1, 0, 2, 2):
            assert (await client.post(f"/sleep?level={level}")).json()["status"] == "sleeping"
        assert engine.told == ["pause", "sleep", "discard"]
        await client.post("/wake_up")
        engine.told.clear()
        await client.post("/sleep?level=0")
        assert (await client.post("/resume")).json() == {"status": "resumed"}
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert engine.told == ["pause", "resume"]


async def test_a_wake_while_a_sleep_waits_for_what_is_live_has_the_last_word() -> None:
    async with serving() as (client, engine, state):
        live = await hold(client, engine)
        sleeping = asyncio.create_task(client.post("/sleep?mode=wait"))
        await until(lambda: state.admission.paused)
        assert (await client.post("/wake_up")).json() == {"status": "awake"}
        assert (await sleeping).json() == {"status": "awake"}
        engine.gate.set()
        assert (await live).status_code == 200
        assert "sleep" not in engine.told
        assert (await begin(client)).status_code == 200


async def test_requests_end_under_a_sleep_that_waits_for_them_and_not_under_one_that_keeps_them() -> None:
    async with serving() as (client, engine, state):
        live = await hold(client, engine)
        sleeping = asyncio.create_task(state.control.sleep(1, "wait"))
        await until(lambda: state.admission.paused)
        assert (state.control.level, state.control.no_request_ends) == (0, False)
        await state.control.sleep(1, "keep")
        assert state.control.no_request_ends
        assert await sleeping
        await client.post("/wake_up")
        assert not state.control.no_request_ends
        engine.gate.set()
        assert (await live).status_code == 200


async def test_a_sleep_that_was_woken_does_not_deepen_the_one_after_it() -> None:
    async with serving() as (client, engine, state):
        live = await hold(client, engine)
        sleeping = asyncio.create_task(state.control.sleep(1, "wait"))
        await until(lambda: state.admission.paused)
        woken = asyncio.create_task(state.control.wake(()))
        again = asyncio.create_task(state.control.sleep(0, "wait"))
        assert not await woken, "the word after it was to sleep"
        engine.gate.set()
        assert (await live).status_code == 200
        assert [await sleeping, await again] == [True, True]
        assert state.control.level == 0
        assert "sleep" not in engine.told


async def test_who_falls_asleep_waits_for_what_is_live_where_a_later_call_wants_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as (client, engine, state):
        live = await hold(client, engine)
        sleeping = asyncio.create_task(state.control.sleep(1, "wait"))
        await until(lambda: state.admission.paused)
        told, under = asyncio.Event(), list[bool]()

        async def pause() -> None:
            await told.wait()

        async def sleep(*, discard: bool = False) -> None:
            under.append(state.admission.generates)

        monkeypatch.setattr(engine, "pause", pause)
        monkeypatch.setattr(engine, "sleep", sleep)
        later = [asyncio.create_task(state.control.pause("keep", clear_cache=False))]
        await until(lambda: not state.admission.paused)
        later.append(asyncio.create_task(state.control.pause("wait", clear_cache=False)))
        await until(lambda: state.admission.paused)
        told.set()
        await until(lambda: "resume" in engine.told)
        for _ in range(50):
            await asyncio.sleep(0)
        engine.gate.set()
        assert (await live).status_code == 200
        assert await sleeping
        assert await later[0]
        assert await later[1]
        assert under == [False], "no request comes to its end without a worker"


@pytest.mark.parametrize("field", ["level", "mode", "tags"])
async def test_what_a_sleep_cannot_be_names_its_field(field: str) -> None:
    async with serving() as (client, engine, _state):
        refused = await client.post(f"/{'wake_up' if field == 'tags' else 'sleep'}?{field}=3")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        assert engine.told == []


async def test_a_prompt_with_an_id_of_its_own_is_aborted_and_the_others_are_answered() -> None:
    async with serving() as (client, engine, _state):
        engine.gate.clear()
        body = {"text": ["one", "two"], "rid": ["x", "y"]}
        live = asyncio.create_task(client.post("/generate", json=body))
        await until(lambda: len(engine.streams) == 2)
        assert (await client.post("/abort_request", json={"rid": "y"})).status_code == 200
        assert (await client.post("/abort_requests", json={"request_ids": ["z"]})).json() == {"aborted": 0}
        engine.gate.set()
        answered, aborted = (await live).json()
        assert (answered["text"], answered["meta_info"]["finish_reason"]["type"]) == ("hello there", "stop")
        assert (aborted["text"], aborted["meta_info"]["finish_reason"]["type"]) == ("", "abort")
        assert (await client.post("/abort_requests", json={"request_ids": ["x"]})).json() == {"aborted": 0}


async def test_requests_are_aborted_by_the_ids_of_their_headers_or_of_their_answers_or_all() -> None:
    async with serving() as (client, engine, _state):
        engine.gate.clear()
        live = [begin(client, **{"x-request-id": name}) for name in ("one", "two", "three", "four")]
        await until(lambda: len(engine.streams) == 4)

        async def abort(body: dict[str, Any]) -> int:
            response = await client.post("/abort_requests", json=body)
            assert response.status_code == 200, response.text
            count: int = response.json()["aborted"]
            return count

        assert await abort({"request_ids": ["one", "chatcmpl-three", "nobody"]}) == 2
        assert [code(await live[place]) for place in (0, 2)] == [(503, "aborted")] * 2
        assert not live[1].done()
        assert await abort({}) == 2
        assert {code(await each) for each in live} == {(503, "aborted")}
        assert await abort({"request_ids": []}) == 0
        engine.gate.set()
        assert (await begin(client)).status_code == 200


async def test_the_prefix_cache_is_reset_with_or_without_what_runs() -> None:
    async with serving() as (client, engine, _state):
        assert (await client.post("/reset_prefix_cache")).json() == {"status": "reset"}
        await client.post("/reset_prefix_cache?reset_running_requests=true")
        assert engine.told == ["reset_prefix_cache", "recompute"]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/pause?mode=stop", "mode"),
        ("/pause?clear_cache=perhaps", "clear_cache"),
        ("/reset_prefix_cache?reset_running_requests=2", "reset_running_requests"),
    ],
)
async def test_a_query_that_makes_no_sense_names_its_field_and_does_nothing(path: str, param: str) -> None:
    async with serving() as (client, engine, _state):
        refused = await client.post(path)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param
        assert engine.told == []
        assert (await client.get("/is_paused")).json() == {"is_paused": False}


async def test_ids_that_are_no_list_of_strings_are_refused() -> None:
    async with serving() as (client, _engine, _state):
        refused = await client.post("/abort_requests", json={"request_ids": "one"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "request_ids")
