"""Binding, what the model's makers recommend, and an end that loses nothing that was written."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import uvicorn

from stentor.engine.loading.checkpoint import Checkpoint, open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.server.app import lifecycle
from stentor.server.app.draining import drain_on_signals
from stentor.server.app.lifecycle import Listener
from stentor.server.app.text_side import generation_defaults, with_turn_ends
from stentor.server.common.errors import ShutDown
from stentor.server.config.models import ModelConfig, SamplingOverrides
from stentor.server.generation.chat_model import GenerationDefaults
from stentor.server.http.listening import StartError, address_of, allow_connections, bind
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import until
from stentor.tests.server.text.vocabularies import byte_level, id_of

BODY = 24 << 20
"""Bytes: more than the sockets of a connection hold between them."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


# ---- a start that fails


def test_a_signal_while_a_failed_start_closes_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def close_and_fail() -> int:
        asyncio.get_running_loop().call_soon(sys.exit, 0)
        try:
            await anyio.sleep_forever()
        finally:
            raise StartError("the store is damaged")

    with pytest.raises(SystemExit):
        anyio.run(lifecycle._ended, close_and_fail)
    assert not caplog.records


# ---- bind


def test_a_bound_socket_listens_and_tells_its_address() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert address_of(sock) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            pass
        assert not sock.get_inheritable(), "the engine must not hold the port"


def test_an_ipv6_address_is_told_in_brackets() -> None:
    try:
        sock = bind("::1", 0)
    except StartError:
        pytest.skip("no IPv6 here")
    with sock:
        assert address_of(sock) == f"http://[::1]:{sock.getsockname()[1]}"


def test_as_many_connections_are_allowed_as_the_hard_limit_says() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
        allow_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_port_in_use_is_named() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(
            StartError, match=f"cannot listen on 127.0.0.1 port {port}: address already in use; .*--port"
        ):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_an_address_that_is_not_ours_is_one_clear_line(host: str) -> None:
    with pytest.raises(StartError, match=f"^cannot listen on {host} port 8000: .*; choose another"):
        bind(host, 8000)


# ---- generation defaults


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("model")
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7], "temperature": 0.6, "top_k": 9}))
    return open_checkpoint(folder, "dummy")


def test_the_models_own_defaults_and_all_its_ends_are_taken(checkpoint: Checkpoint) -> None:
    assert generation_defaults(ModelConfig(), checkpoint) == GenerationDefaults(
        temperature=0.6, top_k=9, eos_token_ids=(2, 7)
    )


def test_without_defaults_only_the_ends_are_taken(checkpoint: Checkpoint) -> None:
    assert generation_defaults(ModelConfig(generation_config="none"), checkpoint) == GenerationDefaults(
        eos_token_ids=(2, 7)
    )


def test_another_file_or_its_folder_replaces_the_defaults_and_adds_its_ends(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": 11, "top_p": 0.5, "temperature": 0.0}))
    expected = GenerationDefaults(temperature=0.0, top_p=0.5, eos_token_ids=(2, 7, 11))
    assert generation_defaults(ModelConfig(generation_config=str(file)), checkpoint) == expected
    assert generation_defaults(ModelConfig(generation_config=str(tmp_path)), checkpoint) == expected


def test_fields_of_the_file_that_have_no_effect_are_logged(
    checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"suppress_tokens": [5], "min_new_tokens": 2}))
    generation_defaults(ModelConfig(generation_config=str(tmp_path)), checkpoint)
    assert "sets suppress_tokens, min_new_tokens, which has no effect" in caplog.text


def test_what_the_operator_says_beats_the_model(checkpoint: Checkpoint) -> None:
    config = ModelConfig(override_generation_config=SamplingOverrides(temperature=0.0, min_p=0.1))
    expected = GenerationDefaults(temperature=0.0, top_k=9, min_p=0.1, eos_token_ids=(2, 7))
    assert generation_defaults(config, checkpoint) == expected


def test_the_operator_bounds_answers_and_the_model_does_not(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 20}))
    stored = open_checkpoint(checkpoint.folder, "dummy")
    assert generation_defaults(ModelConfig(), stored).most_tokens is None
    bounded = ModelConfig(override_generation_config=SamplingOverrides(max_new_tokens=30))
    assert generation_defaults(bounded, stored).most_tokens == 30


@pytest.mark.parametrize(("named", "texts", "ends"), [((), (), "</s>"), ((7,), (), ""), ((), ("<|é|>",), "<|é|>")])
def test_the_tokenizers_end_of_a_text_ends_answers_where_no_other_token_would(
    named: tuple[int, ...], texts: tuple[str, ...], ends: str
) -> None:
    tokenizer = byte_level()
    expected = (id_of(tokenizer, ends),) if ends else named
    assert with_turn_ends(GenerationDefaults(eos_token_ids=named), tokenizer, texts).eos_token_ids == expected


def test_ends_of_the_model_s_class_count_where_its_files_name_none_if_they_are_special() -> None:
    tokenizer = byte_level()
    ends, special = id_of(tokenizer, "</s>"), id_of(tokenizer, "<|é|>")
    for named, expected in (((), {ends, special}), ((7,), {7})):
        found = with_turn_ends(GenerationDefaults(eos_token_ids=named), tokenizer, (), (special, 66))
        assert {*found.eos_token_ids} == expected


@pytest.mark.parametrize("content", [None, "{", "[]", '{"top_k": "many"}'])
def test_a_file_of_defaults_that_cannot_be_used_is_named(
    checkpoint: Checkpoint, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "generation_config.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CheckpointError, match=f"^Cannot .* {file}: "):
        generation_defaults(ModelConfig(generation_config=str(tmp_path)), checkpoint)


# ---- the listener


async def _large(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % BODY)]})
    await send({"type": "http.response.body", "body": bytes(BODY)})


@pytest.mark.anyio
async def test_closing_waits_until_a_slow_reader_has_the_whole_answer() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        listener = Listener(uvicorn.Config(_large, http="httptools", ws="none", lifespan="off", log_config=None))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.run_until_closed, sock)
            async with await anyio.connect_tcp("127.0.0.1", port) as reader:
                await reader.send(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
                received = len((await reader.receive()).partition(b"\r\n\r\n")[2])
                closed = anyio.Event()
                tasks.start_soon(_close, listener, closed)
                await anyio.sleep(0.3)
                assert not closed.is_set()
                while received < BODY:
                    received += len(await reader.receive())
            with anyio.fail_after(60):
                await closed.wait()
            tasks.cancel_scope.cancel()
    with pytest.raises(OSError, match=r"refused|failed"):
        await anyio.connect_tcp("127.0.0.1", port)


@pytest.mark.anyio
async def test_closing_does_not_wait_for_idle_connections() -> None:
    with bind("127.0.0.1", 0) as sock:
        listener = Listener(uvicorn.Config(_large, http="httptools", ws="none", lifespan="off", log_config=None))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.run_until_closed, sock)
            async with await anyio.connect_tcp("127.0.0.1", sock.getsockname()[1]):
                await anyio.sleep(0.05)
                with anyio.fail_after(60):
                    await listener.close()


async def _close(listener: Listener, closed: anyio.Event) -> None:
    await listener.close()
    closed.set()


@pytest.mark.anyio
async def test_a_second_signal_lets_connections_write_out_their_last_words() -> None:
    admission = fake_state().admission
    seen: list[object] = []

    async def close() -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(admission.live_requests)

    async def request() -> None:
        with pytest.raises(ShutDown), admission.admit() as context, context.bounded():
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:

        def end(code: int) -> None:
            seen.append(code)
            tasks.cancel_scope.cancel()

        tasks.start_soon(request)
        tasks.start_soon(drain_on_signals, admission, close, 600.0, end, lambda: False)
        await anyio.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: admission.draining)
        assert not seen
        os.kill(os.getpid(), signal.SIGINT)
    assert seen == [0, 130]


@pytest.mark.anyio
@pytest.mark.parametrize("falls_asleep", ["before", "while it drains"])
async def test_no_request_is_waited_for_while_the_server_sleeps_but_a_transfer_is(falls_asleep: str) -> None:
    admission = fake_state().admission
    asleep = falls_asleep == "before"
    transferred = anyio.Event()
    codes: list[int] = []

    async def close() -> None:
        assert not admission.live_requests

    async def request() -> None:
        with pytest.raises(ShutDown), admission.admit() as context, context.bounded():
            await anyio.sleep_forever()

    async def transfer() -> None:
        with admission.transfer() as context, context.bounded():
            await transferred.wait()

    async with anyio.create_task_group() as tasks:

        def end(code: int) -> None:
            codes.append(code)
            tasks.cancel_scope.cancel()

        tasks.start_soon(request)
        tasks.start_soon(transfer)
        tasks.start_soon(drain_on_signals, admission, close, 600.0, end, lambda: asleep)
        await anyio.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGTERM)
        if not asleep:
            await until(lambda: admission.draining)
            await anyio.wait_all_tasks_blocked()
            assert admission.live_requests == 2
            asleep = True
            admission.look_again()
        await until(lambda: not admission.generates)
        assert admission.live_requests == 1
        transferred.set()
    assert codes == [143]
