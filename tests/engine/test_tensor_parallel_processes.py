"""A real engine over two workers that split a model: it gives what one worker gives, also when either is killed."""

import os
import signal
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec
import pytest

from stentor.engine.client.client import EngineClient
from stentor.engine.client.request import EngineRequest
from stentor.engine.client.stream import RequestStream
from stentor.engine.sharing.lease import Member, create_lease, peek
from stentor.engine.sharing.weight_cache import create_weight_file, read_header
from stentor.loadtest.processes import alive
from stentor.protocols.ipc.actors import Finished, SequenceTokens
from stentor.protocols.ipc.config import EngineConfig, SpeculativeConfig, WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.forked import client_of, served, told_of_losses, workers_of
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import prompt_of
from stentor.tests.parity.test_tensor_parallel import write_q8_0

pytestmark = pytest.mark.anyio
TOKENS = 40
SAMPLED = SamplingParams(max_tokens=TOKENS, temperature=0.8, top_k=40)
GREEDY = SamplingParams(max_tokens=TOKENS, temperature=0.0, logprobs=3, stop_token_ids=())
BLOCK_BYTES = 3 * 2 * 16 * 16 * 4
"""Of a rank: keys and values of one head in three layers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return folder


def config_of(folder: Path, size: int, **changes: object) -> WorkerConfig:
    """Prompts are cut into chunks, and there is room for two or three of the sequences that come at once."""
    fields = {"max_num_batched_tokens": 32, "max_model_len": 128, "threads": 1, "batch_invariant": True}
    fields["kv_cache_memory"] = 20 * (3 - size) * BLOCK_BYTES
    return model_config(folder, tensor_parallel_size=size, **{**fields, **changes})


@dataclass
class Reader:
    stream: RequestStream
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    async def read(self) -> None:
        async for events in self.stream:
            for event in events:
                if isinstance(event, SequenceTokens):
                    self.tokens += event.tokens
                    self.logprobs += [logprob for each in event.logprobs or () for _, logprob in each.top]
                elif isinstance(event, Finished):
                    self.ends.append(event.reason)


def running(
    config: WorkerConfig, weights: Sequence[int] = (), lease: int | None = None
) -> AbstractAsyncContextManager[EngineClient]:
    return served(client_of(EngineConfig(config), weights, lease), seconds=240)


async def answers(client: EngineClient, params: SamplingParams, victims: Sequence[int] = ()) -> list[Reader]:
    """Of six prompts at once, the last of which has seen most of the first; after each further tenth of the
    first stream the worker of such a rank is killed."""
    prompts = [prompt_of(20 + number, 10 + 9 * number) for number in range(5)]
    prompts.append([*prompts[4][:-2], 7])
    readers = [Reader(client.submit(EngineRequest(prompt, params, [number]))) for number, prompt in enumerate(prompts)]
    async with anyio.create_task_group() as tasks:
        for reader in readers:
            tasks.start_soon(reader.read)
        for rank in victims:
            wanted = len(readers[0].tokens) + TOKENS // 10
            while len(readers[0].tokens) < wanted and not readers[0].ends:
                await anyio.sleep(0.01)
            while client.stalled is not None or len(workers := workers_of(client)) < 2:
                await anyio.sleep(0.01)
            os.kill(workers[rank], signal.SIGKILL)
            while any(map(alive, workers)):
                await anyio.sleep(0.01)
    return readers


def whole(folder: Path, params: SamplingParams, **changes: object) -> list[Reader]:
    """What one worker that has all of the model gives."""
    engine = LocalEngine(config_of(folder, 1, **changes))
    found = []
    prompts = [prompt_of(20 + number, 10 + 9 * number) for number in range(5)]
    for number, prompt in enumerate([*prompts, [*prompts[4][:-2], 7]]):
        rid = engine.submit(prompt, params, [number])
        engine.run()
        outcome = engine.outcomes[rid, 0]
        logprobs = [logprob for each in outcome.logprobs for _, logprob in each.top]
        found.append(Reader(None, outcome.tokens, logprobs))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("params", [GREEDY, pytest.param(SAMPLED, marks=pytest.mark.proof)], ids=["greedy", "sampled"])
async def test_two_workers_give_what_one_gives(folder: Path, params: SamplingParams) -> None:
    expected = whole(folder, params)
    async with running(config_of(folder, 2, kv_offloading_size=1 << 20)) as client:
        assert client.ready is not None
        assert any("the sum over workers" in note for note in client.ready.notes)
        assert len(workers_of(client)) == 2
        for _ in range(2):
            found = await answers(client, params)
            assert [reader.tokens for reader in found] == [reader.tokens for reader in expected]
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        stats = client.stats
        assert stats.preemptions > 0
        assert stats.prefix_hits > 0
        assert stats.host_hits > 0


async def test_two_workers_with_some_of_the_layers_each_give_what_one_gives_and_outlive_a_loss(folder: Path) -> None:
    params = msgspec.structs.replace(GREEDY, max_tokens=20)
    expected = whole(folder, params)
    config = config_of(folder, 1, pipeline_parallel_size=2, kv_offloading_size=1 << 20)
    async with running(config) as client:
        assert client.ready is not None
        assert any("the stream of a stage" in note for note in client.ready.notes)
        for victims in ([], [1]):
            found = await answers(client, params, victims)
            assert [reader.tokens for reader in found] == [reader.tokens for reader in expected]
        await told_of_losses(client, workers=1)
        assert client.stats.prefix_hits > 0


async def test_two_workers_with_half_of_the_experts_each_give_what_one_gives(tmp_path: Path) -> None:
    tiny.make("qwen2-moe", tmp_path)
    params = msgspec.structs.replace(GREEDY, max_tokens=8)
    expected = whole(tmp_path, params)
    async with running(config_of(tmp_path, 2, enable_expert_parallel=True)) as client:
        found = await answers(client, params)
    assert [reader.tokens for reader in found] == [reader.tokens for reader in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.proof
async def test_two_workers_verify_the_same_drafts(folder: Path) -> None:
    """With few tokens to choose from a text repeats itself."""
    for params in (GREEDY, SAMPLED):
        params = msgspec.structs.replace(params, allowed_token_ids=(5, 9, 70))
        expected = whole(folder, params)
        async with running(config_of(folder, 2, speculative=SpeculativeConfig("ngram", 4))) as client:
            found = await answers(client, params)
            assert [reader.tokens for reader in found] == [reader.tokens for reader in expected]
            assert 0 < client.stats.num_accepted_tokens < client.stats.num_draft_tokens


@pytest.mark.proof
async def test_two_workers_go_on_with_recurrent_states_after_drafts_and_a_loss(tmp_path: Path) -> None:
    tiny.make("qwen3.5", tmp_path)
    params = msgspec.structs.replace(GREEDY, allowed_token_ids=(5, 9, 70))
    expected = whole(tmp_path, params, kv_cache_memory=1 << 20)
    drafts = SpeculativeConfig("ngram", 4)
    async with running(config_of(tmp_path, 2, kv_cache_memory=1 << 20, speculative=drafts)) as client:
        for victims in ([], [1]):
            found = await answers(client, params, victims)
            assert [reader.tokens for reader in found] == [reader.tokens for reader in expected]
        await told_of_losses(client, workers=1)
        stats = client.stats
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


async def test_blocks_of_a_gguf_file_are_multiplied_as_they_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_q8_0(path, inner=128)
    first = msgspec.structs.replace(GREEDY, max_tokens=1)
    expected = whole(path, first, dtype="bfloat16", batch_invariant=False)
    async with running(config_of(path, 2, dtype="bfloat16", batch_invariant=False)) as client:
        found = await answers(client, first)
        assert client.ready is not None
        assert any(note.startswith("weights in Q8_0: packed for this CPU") for note in client.ready.notes)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=0.03)
        assert ours.logprobs[0] - ours.logprobs[2] > 0.03, "a mistake would not be seen"


@pytest.mark.parametrize("name", ["llama", pytest.param("granite-moe-shared", marks=pytest.mark.proof)])
async def test_streams_go_on_exactly_where_they_were_whichever_worker_is_killed(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    before = {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists()}
    files = [create_weight_file() for _ in range(2)]
    try:
        async with running(config_of(tmp_path, 2), files) as client:
            expected = [reader.tokens for reader in await answers(client, SAMPLED)]
            first = workers_of(client)
            found = await answers(client, SAMPLED, [1, 0])
            assert [reader.tokens for reader in found] == expected
            assert {end for reader in found for end in reader.ends} <= {"length", "stop"}
            stats = client.stats
            assert stats.worker_restarts == 2
            assert stats.poisoned == 0
            last = workers_of(client)
            assert not set(first) & set(last)
            kept = [header.key for file in files if (header := read_header(file)) is not None]
            assert len(set(kept)) == len(kept)
            assert len(kept) in (0, 2), "each finds its own weights, where large pages can be shared"
        assert not any(map(alive, (*first, *last)))
    finally:
        for file in files:
            os.close(file)
    after = {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists()}
    assert not {name for name in after - before if "stentor-group" in name or "/dev/shm" in name}


async def test_the_first_takes_a_shared_device_for_both(folder: Path) -> None:
    lease = create_lease([1, 1])
    try:
        other = Member(lease, 1)
        async with running(config_of(folder, 2), lease=lease) as client:
            reader = Reader(client.submit(EngineRequest(prompt_of(1, 10), GREEDY, [1])))
            async with anyio.create_task_group() as tasks:
                with other:
                    tasks.start_soon(reader.read)
                    while not peek(lease)[0].waits:
                        await anyio.sleep(0.01)
                    assert not reader.tokens
            assert len(reader.tokens) == TOKENS
            assert not any(member.holds or member.waits for member in peek(lease))
    finally:
        os.close(lease)
