"""What is told about the prefix cache: a router that listens knows at any time which blocks can be found."""

import random
from array import array
from importlib.util import find_spec
from typing import Any

import msgspec
import pytest

from stentor.engine.core.cache.blocks import BlockPool
from stentor.engine.core.cache.events import CacheEvents
from stentor.engine.core.cache.prefix import chain_digest, root_digest
from stentor.engine.core.event_publisher import EventPublisher, EventsUnavailable, _of_replica
from stentor.engine.core.scheduler import Scheduler
from stentor.protocols.ipc.actors import Submit
from stentor.protocols.ipc.config import KvEventsConfig, SchedulerConfig
from stentor.protocols.ipc.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEventBatch
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.fake_worker import FakeWorker
from stentor.tests.engine.schedulers import CONFIG, ready_of

SIZE = 4
TOLD = KvEventsConfig(True)
needs_zmq = pytest.mark.skipif(find_spec("zmq") is None, reason="the extra `kv-events` is not installed")


class Router:
    """Keeps the tokens of the prefixes that can be found, by what it is told alone."""

    def __init__(self) -> None:
        self.prefixes: dict[int, tuple[int, ...]] = {}

    def take(self, changes: list[BlockStored | BlockRemoved | AllBlocksCleared]) -> None:
        for change in changes:
            match change:
                case BlockStored():
                    assert len(change.token_ids) == SIZE * len(change.block_hashes)
                    before: tuple[int, ...] = ()
                    if change.parent_block_hash is not None:
                        before = self.prefixes[change.parent_block_hash]
                    for place, name in enumerate(change.block_hashes):
                        before = (*before, *change.token_ids[place * SIZE : (place + 1) * SIZE])
                        assert name not in self.prefixes
                        self.prefixes[name] = before
                case BlockRemoved():
                    for name in change.block_hashes:
                        del self.prefixes[name]
                case AllBlocksCleared():
                    self.prefixes.clear()


def _scheduler(blocks: int = 24) -> tuple[Scheduler, FakeWorker]:
    limits: dict[str, Any] = {"num_blocks": blocks, "block_size": SIZE, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    config = msgspec.structs.replace(CONFIG, scheduler=SchedulerConfig(kv_events=TOLD))
    scheduler = Scheduler(ready_of(**limits, max_model_len=64), config)
    return scheduler, FakeWorker(**limits)


def _found(scheduler: Scheduler, tokens: tuple[int, ...]) -> bool:
    """Whether the last block of this prefix can be found."""
    digest = root_digest("")
    for start in range(0, len(tokens), SIZE):
        digest = chain_digest(digest, array("i", tokens[start : start + SIZE]))
    return scheduler._kv_cache.pool.find(digest) is not None


@pytest.mark.parametrize("seed", range(4))
def test_a_router_knows_exactly_the_full_blocks_that_can_be_found(seed: int) -> None:
    scheduler, worker = _scheduler()
    router, rand = Router(), random.Random(seed)
    rid, known = 0, 0
    for step in range(300):
        if rand.random() < 0.2:
            prompt = [rand.randrange(3) for _ in range(rand.randrange(1, 30))]
            params = SamplingParams(max_tokens=rand.randrange(1, 20))
            scheduler.submit(Submit(rid, prompt, params, [rid], 0, "", float(step)))
            rid += 1
        if (plan := scheduler.plan(float(step))) is not None:
            result = worker.run(plan)
            assert result is not None
            scheduler.complete(result, float(step))
        if rand.random() < 0.01:
            scheduler.reset_prefix_cache()
        router.take(scheduler.take_cache_events())
        assert all(_found(scheduler, tokens) for tokens in router.prefixes.values())
        hashed = scheduler._kv_cache.pool._by_hash
        told = scheduler._kv_cache.pool.events._reported if scheduler._kv_cache.pool.events else set()
        assert told <= hashed.keys()
        assert len(told) == len(router.prefixes)
        known = max(known, len(router.prefixes))
    assert known > 5


def test_blocks_in_a_row_are_one_event_and_unknown_ones_are_not_told() -> None:
    events = CacheEvents(SIZE)
    a, b, c = (bytes([n]) * 32 for n in range(3))
    events.stored(a, None, [1, 2, 3, 4], None, "")
    events.stored(b, a, [5, 6, 7, 8], None, "")
    events.stored(b, a, [5, 6, 7, 8], None, "")
    events.stored(c, a, [9, 9, 9, 9], "mine", "salt")
    events.removed(b"never told")
    events.removed(b)
    events.removed(a)
    first, branch, removed = events.take()
    assert first == BlockStored([0, 0x0101010101010101], None, [1, 2, 3, 4, 5, 6, 7, 8], SIZE, None, "GPU", None)
    assert isinstance(branch, BlockStored)
    assert (branch.parent_block_hash, branch.lora_name, branch.extra_keys) == (0, "mine", [["salt"]])
    assert removed == BlockRemoved([0x0101010101010101, 0], "GPU")
    events.stored(a, None, [1, 2, 3, 4], None, "")
    events.cleared()
    assert events.take() == [AllBlocksCleared()], "what came before is void"
    assert events.take() == []


def test_a_pool_without_listeners_tells_nothing_and_one_with_them_tells_of_its_reset() -> None:
    pool = BlockPool(2)
    pool.reset()
    pool.events = CacheEvents(SIZE)
    pool.reset(3)
    assert pool.events.take() == [AllBlocksCleared()]


def test_messages_have_vllm_s_form() -> None:
    stored = BlockStored([1, 2], None, [3, 4], 1, None, "GPU", None)
    written = msgspec.msgpack.encode(KvEventBatch(1.5, [stored, BlockRemoved([1], "GPU"), AllBlocksCleared()], 0))
    fields = {"block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [3, 4], "block_size": 1}
    assert msgspec.msgpack.decode(written) == [
        1.5,
        [
            {"type": "BlockStored", **fields, "lora_id": None, "medium": "GPU", "lora_name": None},
            {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
            {"type": "AllBlocksCleared"},
        ],
        0,
    ]


def test_each_engine_has_an_endpoint_of_its_own() -> None:
    assert _of_replica("tcp://*:5557", 0) == "tcp://*:5557"
    assert _of_replica("tcp://[::1]:5557", 3) == "tcp://[::1]:5560"
    assert _of_replica("ipc:///run/kv", 1) == "ipc:///run/kv_dp1"


@needs_zmq
def test_subscribers_get_numbered_batches_and_those_that_they_missed(tmp_path: Any) -> None:
    import zmq

    told, asked = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    config = KvEventsConfig(True, endpoint=told, replay_endpoint=asked, buffer_steps=2, topic="kv")
    publisher = EventPublisher(config, 0)
    context = zmq.Context()
    listener, asker = context.socket(zmq.SUB), context.socket(zmq.REQ)
    try:
        listener.subscribe("kv")
        listener.connect(told)
        asker.connect(asked)
        got: list[list[bytes]] = []
        while not got:  # until it has subscribed
            publisher.publish([AllBlocksCleared()])
            if listener.poll(20):
                got.append(listener.recv_multipart())
        publisher.publish([BlockRemoved([7], "GPU")])
        while msgspec.msgpack.decode(got[-1][2])[1] != [{"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"}]:
            got.append(listener.recv_multipart())
        last = int.from_bytes(got[-1][1], "big")
        assert [batch[0] for batch in got] == [b"kv"] * len(got)
        publisher.publish([BlockRemoved([8], "GPU")])
        asker.send((0).to_bytes(8, "big"))
        replayed = [asker.recv_multipart()]
        assert int.from_bytes(replayed[0][0], "big") == last, "two are kept"
    finally:
        for socket in (listener, asker):
            socket.close(linger=0)
        context.term()
        publisher.close()


@needs_zmq
def test_an_endpoint_that_cannot_be_had_is_one_line() -> None:
    with pytest.raises(EventsUnavailable, match=r"^--kv-events-config: "):
        EventPublisher(KvEventsConfig(True, endpoint="nonsense"), 0)


@pytest.mark.skipif(find_spec("zmq") is not None, reason="the extra `kv-events` is installed")
def test_without_the_package_the_line_says_what_to_install() -> None:
    with pytest.raises(EventsUnavailable, match="stentor\\[kv-events\\]"):
        EventPublisher(TOLD, 0)
