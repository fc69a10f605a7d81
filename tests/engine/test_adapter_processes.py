"""Real engine and worker processes over a tiny model: rows keep their adapters, whoever dies."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from stentor.engine.client.request import EngineRequest
from stentor.engine.client.stream import RequestStream
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.engines import delivered, read_all
from stentor.tests.engine.forked import client_of, served, worker_of
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny
from stentor.tests.parity.tiny_adapters import save_adapter

pytestmark = pytest.mark.anyio

PROMPT = [5, 6, 7]
GREEDY = SamplingParams(max_tokens=110, temperature=0.0)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


async def test_each_row_goes_on_with_its_adapter_after_its_worker_and_its_engine_were_killed(tmp_path: Path) -> None:
    model = tiny.make("llama", tmp_path / "model", layers=2)
    refs: list[AdapterRef | None] = [None]
    for number in (1, 2, 3):
        save_adapter(model, tmp_path / str(number), number)
        refs.append(AdapterRef(number, str(number), str(number), str(tmp_path)))
    config = model_config(
        tmp_path / "model",
        max_num_seqs=8,
        batch_invariant=True,
        kv_cache_memory=8 << 20,
        threads=1,
        enable_lora=True,
        max_loras=2,
        max_cpu_loras=2,
    )
    client = client_of(EngineConfig(config))
    read: dict[int, list[int]] = {}

    async def take(number: int, stream: RequestStream) -> None:
        tokens, ends = await read_all(stream)
        assert ends[0].reason == "length", ends
        read[number] = tokens[0]

    async with served(client, seconds=240):
        missing = await client.load_adapter(AdapterRef(9, "nobody", "nobody", str(tmp_path)))
        assert missing.missing
        assert "No adapter found" in missing.error
        assert refs[1] is not None
        assert not (await client.load_adapter(refs[1])).error
        async with anyio.create_task_group() as undisturbed:
            for number, adapter in enumerate(refs):
                undisturbed.start_soon(take, number, client.submit(EngineRequest(PROMPT, GREEDY, [0], adapter=adapter)))
        expected, read = read, {}
        assert len({tuple(tokens) for tokens in expected.values()}) == len(refs), "adapters that change nothing"
        async with anyio.create_task_group() as disturbed:
            streams = [client.submit(EngineRequest(PROMPT, GREEDY, [0], adapter=adapter)) for adapter in refs]
            for number, stream in enumerate(streams):
                disturbed.start_soon(take, number, stream)
            victims: list[Callable[[], int | None]] = [lambda: worker_of(client), lambda: client.pid]
            with anyio.fail_after(120):
                for find in victims:
                    before = delivered(streams)
                    while client.stalled is not None or (delivered(streams) == before and len(read) < len(refs)):
                        await anyio.sleep(0.001)
                    pid = find()
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
                    while find() in (None, pid):
                        await anyio.sleep(0.001)
        assert read == expected


@pytest.mark.proof  # logits of two ranks: tests/parity/test_tensor_parallel.py
async def test_two_workers_that_split_a_model_draw_with_each_adapter_what_one_draws(tmp_path: Path) -> None:
    model = tiny.make("llama", tmp_path / "model", layers=2)
    refs: list[AdapterRef | None] = [None]
    for number in (1, 2):
        save_adapter(model, tmp_path / str(number), number)
        refs.append(AdapterRef(number, str(number), str(number), str(tmp_path)))
    fields = {"max_num_seqs": 4, "batch_invariant": True, "threads": 1, "enable_lora": True, "max_loras": 2}
    one = LocalEngine(model_config(tmp_path / "model", **fields))
    params = SamplingParams(max_tokens=24, temperature=0.0)
    asked = [one.submit(PROMPT, params, [0], adapter=adapter) for adapter in refs]
    one.run()
    client = client_of(EngineConfig(model_config(tmp_path / "model", tensor_parallel_size=2, **fields)))
    async with served(client, seconds=240):
        for _ in range(2):
            for adapter, rid in zip(refs, asked, strict=True):
                tokens, ends = await read_all(client.submit(EngineRequest(PROMPT, params, [0], adapter=adapter)))
                assert ends[0].reason == "length", ends
                assert tokens[0] == one.outcomes[rid, 0].tokens
