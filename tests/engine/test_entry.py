"""The engine process on its own: what it does with what it is told, from its first message to its end."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from stentor.engine.channel import ChannelPair, Endpoint, PeerDied
from stentor.engine.process import Child, spawn
from stentor.loadtest.processes import alive, children, cpu_seconds
from stentor.protocols.actors import (
    Abort,
    ClientInbox,
    EngineInbox,
    EngineReady,
    Failed,
    Finished,
    Progress,
    Shutdown,
    StartEngine,
    Stats,
    Submit,
    TokensBatch,
)
from stentor.protocols.codec import decode_client, encoder
from stentor.protocols.config import EngineConfig
from stentor.protocols.sampling import SamplingParams
from stentor.tests.e2e.processes import eventually
from stentor.tests.engine.engines import odd_config

SOON = 5.0


@contextmanager
def engine_process() -> Iterator[tuple[Endpoint, Child]]:
    pair = ChannelPair.create()
    with pair.parent as engine:
        child = spawn("stentor.engine.entry", pair.child_fds)
        try:
            engine.watch(child.pid, child.pidfd)
            yield engine, child
        finally:
            child.close()


def _send(engine: Endpoint, *messages: EngineInbox) -> None:
    for message in messages:
        assert engine.try_send(encoder.encode(message))


def _receive(engine: Endpoint) -> Iterator[ClientInbox]:
    """What the engine sends until it ends, figures and progress left out."""
    while True:
        try:
            frames = engine.receive_blocking(SOON)
        except PeerDied:
            return
        assert frames, "the engine is silent"
        for frame in frames:
            message = decode_client.decode(frame)
            if not isinstance(message, Stats | Progress):
                yield message


def _worker_of(engine: Child) -> int:
    found: list[int] = []

    def started() -> bool:
        found[:] = children(engine.pid)
        return bool(found)

    eventually(started, SOON, "the engine starts its worker")
    return found[0]


def test_told_to_end_in_the_same_breath_it_does_not_start_a_worker() -> None:
    with engine_process() as (engine, child):
        _send(engine, StartEngine(odd_config("silent")), Shutdown())
        assert child.wait_blocking(SOON) == 0


def test_told_to_end_while_its_worker_loads_it_ends_both_at_once() -> None:
    with engine_process() as (engine, child):
        _send(engine, StartEngine(odd_config("silent")))
        worker = _worker_of(child)
        _send(engine, Shutdown())
        assert child.wait_blocking(2.0) == 0
        assert not alive(worker)


def test_told_to_end_while_it_works_it_ends_its_worker_too() -> None:
    with engine_process() as (engine, child):
        _send(engine, StartEngine(odd_config("ready")))
        assert isinstance(next(_receive(engine)), EngineReady)
        worker = _worker_of(child)
        _send(engine, Submit(0, [1, 2], SamplingParams(max_tokens=2000), [1], 0, "", 0.0), Shutdown())
        assert child.wait_blocking(SOON) == 0
        assert not alive(worker)


@pytest.mark.parametrize("manner", ["silent", "ready"])
def test_an_owner_that_closed_its_end_is_as_good_as_dead(manner: str) -> None:
    with engine_process() as (engine, child):
        _send(engine, StartEngine(odd_config(manner)))
        worker = _worker_of(child)
        engine.close()
        assert child.wait_blocking(SOON) == 0
        assert not alive(worker)


def test_a_client_that_never_reads_does_not_keep_it_from_ending() -> None:
    with engine_process() as (engine, child):
        _send(engine, StartEngine(odd_config("wordy")))
        assert isinstance(next(_receive(engine)), EngineReady)
        for rid in range(64):
            _send(engine, Submit(rid, [1, 2], SamplingParams(max_tokens=2000), [1], 0, "", 0.0))
        before = -1.0
        while (now := _cpu(child.pid)) != before:  # until the ring is full
            before = now
            time.sleep(0.1)
        engine.close()
        assert child.wait_blocking(SOON) == 0


def test_a_worker_that_answers_another_step_ends_the_engine_with_one_line() -> None:
    with engine_process() as (engine, child):
        _send(engine, StartEngine(odd_config("wrong")))
        received = _receive(engine)
        assert isinstance(next(received), EngineReady)
        _send(engine, Submit(0, [1, 2], SamplingParams(max_tokens=5), [1], 0, "", 0.0))
        (failed,) = received
        assert isinstance(failed, Failed)
        assert failed.message.startswith("the engine failed: ValueError: the worker sent the result of step 7")
        assert "\n" not in failed.message
        assert child.wait_blocking(SOON) == 1


def test_limits_that_make_no_sense_end_the_engine_with_one_line() -> None:
    config = odd_config("ready")
    worker = msgspec.structs.replace(config.worker, max_num_seqs=-1)
    with engine_process() as (engine, child):
        _send(engine, StartEngine(EngineConfig(worker, config.scheduler, config.worker_module)))
        (failed,) = _receive(engine)
        assert failed == Failed("the engine failed: ValueError: max_num_seqs is -1; it must be at least 1")
        assert child.wait_blocking(SOON) == 1


def test_aborts_of_unknown_requests_are_harmless() -> None:
    with engine_process() as (engine, child):
        _send(engine, StartEngine(odd_config("ready")))
        received = _receive(engine)
        assert isinstance(next(received), EngineReady)
        _send(engine, Abort(99, -1), Abort(99, 3), Submit(0, [1, 2], SamplingParams(max_tokens=1), [1], 0, "", 0.0))
        batch = next(received)
        assert isinstance(batch, TokensBatch)
        assert batch.finished == [Finished(0, 0, "length", None, None)]
        assert child.returncode is None


def _cpu(pid: int) -> float:
    return sum(map(cpu_seconds, (pid, *children(pid))))
