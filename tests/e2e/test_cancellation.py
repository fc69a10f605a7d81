"""A client goes away, in every state that a request can be in: all that the request held is free two steps later.

The engine and its worker are real, and so is the listener; the model is random and small.
"""

import asyncio
import json
import os
import signal
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from stentor.engine.client.client import EngineClient
from stentor.protocols.ipc.config import EngineConfig, WorkerConfig
from stentor.server.app.state import ServerState
from stentor.server.http.http_protocol import HttpProtocol
from stentor.server.overload.slow_readers import ReaderLimits
from stentor.server.text.pool import INLINE_CHARS, TokenizerPool
from stentor.server.text.tokenizers.loading import number_tokenizer
from stentor.tests.engine.forked import client_of, worker_of
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import on_loopback, until

pytestmark = pytest.mark.anyio

VOCABULARY = 2048
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 4096,
}
ROWS = 6
CHUNK = 32
"""Tokens of a step at most, so that a long prompt takes many."""
LATE_STEPS = 4
"""Two that were under way when the engine was told, and two whose tokens were on the way to the server."""
AFTER = ["fin", "rst"]


@dataclass
class Bench:
    """The server under test, and what it looks like when it is idle."""

    state: ServerState
    url: str
    free_blocks: int = field(init=False)
    tasks: int = field(init=False)
    descriptors: int = field(init=False)

    def __post_init__(self) -> None:
        ready = self.state.chat.client.ready
        assert ready is not None
        self.free_blocks = ready.num_blocks
        self.tasks = len(asyncio.all_tasks())
        self.descriptors = len(os.listdir("/proc/self/fd"))

    @property
    def held(self) -> dict[str, int]:
        """What is not as it is when it is idle."""
        stats, queue = self.state.chat.client.stats, self.state.admission.queue
        counts = {
            "blocks": self.free_blocks - stats.free_blocks,
            "rows": stats.running,
            "waiting": stats.waiting,
            "permits": queue.requests,
            "tokens": queue.tokens,
            "tickets": self.state.admission.live_requests,
            # fewer than before is no leak: one of the engine client's tasks ends by itself, and what an earlier test of
            # this process left to the garbage collector is closed at some time; a leak in each test grows past that
            "tasks": max(0, len(asyncio.all_tasks()) - self.tasks),
            "descriptors": max(0, len(os.listdir("/proc/self/fd")) - self.descriptors),
        }
        return {what: count for what, count in counts.items() if count}

    @property
    def generated(self) -> int:
        return int(self.state.metrics.requests.generation_tokens.value)

    async def figures(self) -> dict[str, float]:
        """What the metrics page says."""
        async with httpx.AsyncClient(base_url=self.url) as client:
            page = (await client.get("/metrics")).text
        return {line.split("{")[0]: float(line.split()[-1]) for line in page.splitlines() if "{" in line}


class Client:
    """One connection with one request on it, which ends it as it likes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.received = b""

    @classmethod
    async def asking(cls, bench: Bench, **fields: Any) -> "Client":
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", int(bench.url.rpartition(":")[2])))
        body = json.dumps({"temperature": 0, "ignore_eos": True, **fields}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % len(body)
        await loop.sock_sendall(sock, head + body)
        return cls(sock)

    async def read_until(self, count: int) -> None:
        """Reads until ``count`` events have come."""
        while self.received.count(b"data: ") < count:
            async with asyncio.timeout(60):
                piece = await asyncio.get_running_loop().sock_recv(self._sock, 4096)
            assert piece, self.received
            self.received += piece

    def leave(self, how: str) -> None:
        if how == "rst":
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder: Path = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    worker = WorkerConfig(
        str(folder),
        load_format="dummy",
        device="cpu",
        dtype="float32",
        max_num_seqs=ROWS,
        max_num_batched_tokens=CHUNK,
        max_mixed_prefill_tokens=CHUNK,
        block_size=16,
        kv_cache_memory=256 << 20,
    )
    client = client_of(EngineConfig(worker))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.run)
        with anyio.fail_after(60):
            await client.wait_started()
        await until(lambda: client.stats.free_blocks, 60)
        pool = TokenizerPool(number_tokenizer(VOCABULARY), threads=1, max_pending=2)
        state = fake_state(
            client,
            pool=pool,
            served_names=("made-up",),
            vocab_size=VOCABULARY,
            eos_token_ids=(),
            trusts_templates=False,
        )
        readers = ReaderLimits(buffer=16 << 10, seconds=60.0)
        async with on_loopback(state, partial(HttpProtocol, readers=readers)) as url:
            yield Bench(state, url)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def standing_still(bench: Bench) -> AsyncIterator[None]:
    """No step ends within the block, before which all that had been generated was read."""
    assert isinstance(bench.state.chat.client, EngineClient)
    worker = worker_of(bench.state.chat.client)
    assert worker is not None
    os.kill(worker, signal.SIGSTOP)
    try:
        same, before = 0, -1
        while same < 10:
            await asyncio.sleep(0.005)
            same, before = same + 1 if bench.generated == before else 0, bench.generated
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


async def all_is_free(bench: Bench) -> None:
    try:
        await until(lambda: not bench.held, 60)
    except TimeoutError:
        pytest.fail(f"still held: {bench.held}")
    figures = await bench.figures()
    assert figures["stentor:kv_cache_free_blocks"] == bench.free_blocks
    assert figures["stentor:kv_cache_usage_perc"] == 0


@pytest.mark.proof(each="how")
@pytest.mark.parametrize("how", AFTER)
async def test_while_waiting_for_the_tokenizer(bench: Bench, how: str) -> None:
    gate = threading.Event()
    standing_still = asyncio.create_task(bench.state.chat.pool.run(lambda: gate.wait(60)))
    text = "7 " * INLINE_CHARS
    clients = [await Client.asking(bench, prompt=text, max_tokens=50, stream=number % 2 == 0) for number in range(5)]
    await until(lambda: bench.state.admission.live_requests == 5)
    for client in clients:
        client.leave(how)
    await until(lambda: not bench.state.admission.live_requests and not bench.state.admission.queue.requests)
    gate.set()
    assert await standing_still
    again = await Client.asking(bench, prompt=text, max_tokens=2, stream=True)
    await again.read_until(3)
    again.leave(how)
    await all_is_free(bench)


@pytest.mark.parametrize("how", AFTER)
async def test_while_queued_in_the_engine(bench: Bench, how: str) -> None:
    runners = [await Client.asking(bench, prompt=[5], max_tokens=3000, stream=True) for _ in range(ROWS)]
    for runner in runners:
        await runner.read_until(1)
    waiters = [await Client.asking(bench, prompt=[6, 7], max_tokens=50, stream=number % 2 == 0) for number in range(4)]
    await until(lambda: bench.state.chat.client.stats.waiting == 4)
    for waiter in waiters:
        waiter.leave(how)
    await until(lambda: bench.state.chat.client.stats.waiting == 0)
    assert bench.state.chat.client.stats.running == ROWS
    for runner in runners:
        runner.leave(how)
    await all_is_free(bench)


@pytest.mark.parametrize("how", AFTER)
async def test_in_the_middle_of_a_prefill(bench: Bench, how: str) -> None:
    before = bench.state.chat.client.stats.steps
    prompt = [9 + number % 50 for number in range(4000)]
    client = await Client.asking(bench, prompt=prompt, max_tokens=50, prompt_logprobs=None)
    await until(lambda: bench.state.chat.client.stats.steps > before)
    client.leave(how)
    await all_is_free(bench)
    steps = bench.state.chat.client.stats.steps - before
    assert steps < len(prompt) / CHUNK, "the prefill went on to its end"


@pytest.mark.proof(each="how")
@pytest.mark.parametrize("how", AFTER)
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_request_that_is_cancelled_while_it_decodes_leaves_nothing_behind(
    bench: Bench, how: str, n: int, stream: bool
) -> None:
    steps, generated = bench.state.chat.client.stats.steps, bench.generated
    client = await Client.asking(bench, prompt=[8], max_tokens=3000, stream=stream, n=n)
    await until(lambda: bench.generated >= generated + 8 * n)
    async with standing_still(bench):
        client.leave(how)
        await until(lambda: not bench.state.admission.live_requests)
    await all_is_free(bench)
    # the first of n is alone until the prompt is there
    steps_delivered = -(-(bench.generated - generated) // n)
    late = bench.state.chat.client.stats.steps - steps - steps_delivered
    assert late <= LATE_STEPS, f"{late} steps ran after the last token that was delivered"


@pytest.mark.parametrize("how", AFTER)
async def test_while_text_is_held_for_a_stop_string(bench: Bench, how: str) -> None:
    stop = "5 " * 12 + "6"
    generated = bench.generated
    client = await Client.asking(bench, prompt=[5], max_tokens=3000, stream=True, stop=[stop], logit_bias={"5": 100})
    await until(lambda: bench.generated > generated + 6)
    client.leave(how)
    await all_is_free(bench)


@pytest.mark.proof(each="how")
@pytest.mark.parametrize("how", AFTER)
async def test_while_the_server_waits_for_a_client_that_does_not_read(bench: Bench, how: str) -> None:
    client = await Client.asking(bench, prompt=[5], max_tokens=3000, stream=True, logprobs=20, n=4)
    began = before = bench.generated
    async with asyncio.timeout(60):
        while bench.generated == began or bench.generated != before:
            before = bench.generated
            await asyncio.sleep(0.2)
    assert bench.state.chat.client.stats.running, "the engine goes on meanwhile"
    client.leave(how)
    await all_is_free(bench)


async def test_several_prompts_of_one_request_end_together(bench: Bench) -> None:
    client = await Client.asking(bench, prompt=[[5], [6], [7]], max_tokens=3000, stream=True, n=2)
    await client.read_until(4)
    client.leave("fin")
    await all_is_free(bench)
