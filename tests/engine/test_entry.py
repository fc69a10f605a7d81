"""The engine process on its own: what it does with what it is told, from its first message to its end."""

import time

import msgspec
import pytest

from stentor.loadtest.processes import alive, children, cpu_seconds
from stentor.protocols.ipc.actors import (
    NO_STATS,
    Abort,
    EngineReady,
    Failed,
    Finished,
    Ping,
    Shutdown,
    StartEngine,
    Submit,
    TokensBatch,
)
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.engine_processes import PATIENT, SOON, engine_process, receive, send, worker_of
from stentor.tests.engine.engines import odd_config


def test_told_to_end_in_the_same_breath_it_does_not_start_a_worker() -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(odd_config("silent")), Shutdown())
        assert child.wait_blocking(SOON) == 0


def test_told_to_end_while_its_worker_loads_it_ends_both_at_once() -> None:
    with engine_process(PATIENT) as (engine, child):
        send(engine, StartEngine(odd_config("silent")))
        worker = worker_of(child)
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0
        assert not alive(worker)


def test_it_answers_while_its_worker_loads() -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(odd_config("silent")), Ping())
        worker_of(child)
        send(engine, Ping())
        assert next(receive(engine, figures=True)) == NO_STATS


def test_told_to_end_while_it_works_it_ends_its_worker_too() -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(odd_config("ready")))
        assert isinstance(next(receive(engine)), EngineReady)
        worker = worker_of(child)
        send(engine, Submit(0, [1, 2], SamplingParams(max_tokens=2000), [1], 0, "", 0.0), Shutdown())
        assert child.wait_blocking(SOON) == 0
        assert not alive(worker)


@pytest.mark.parametrize("manner", ["silent", "ready"])
def test_an_owner_that_closed_its_end_is_as_good_as_dead(manner: str) -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(odd_config(manner)))
        worker = worker_of(child)
        engine.close()
        assert child.wait_blocking(SOON) == 0
        assert not alive(worker)


def test_a_client_that_never_reads_does_not_keep_it_from_ending() -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(odd_config("wordy")))
        assert isinstance(next(receive(engine)), EngineReady)
        for rid in range(64):
            send(engine, Submit(rid, [1, 2], SamplingParams(max_tokens=2000), [1], 0, "", 0.0))
        before = -1.0
        while (now := _cpu(child.pid)) != before:  # until the ring is full
            before = now
            time.sleep(0.1)
        engine.close()
        assert child.wait_blocking(SOON) == 0


def test_a_worker_that_answers_another_step_ends_the_engine_with_one_line() -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(odd_config("wrong")))
        received = receive(engine)
        assert isinstance(next(received), EngineReady)
        send(engine, Submit(0, [1, 2], SamplingParams(max_tokens=5), [1], 0, "", 0.0))
        (failed,) = received
        assert isinstance(failed, Failed)
        assert failed.message.startswith("the engine failed: ValueError: the worker sent the result of step 7")
        assert not failed.final, "another engine may do better"
        assert "\n" not in failed.message
        assert child.wait_blocking(SOON) == 1


def test_limits_that_make_no_sense_end_the_engine_with_one_line() -> None:
    config = odd_config("ready")
    worker = msgspec.structs.replace(config.worker, max_num_seqs=-1)
    with engine_process() as (engine, child):
        send(engine, StartEngine(msgspec.structs.replace(config, worker=worker)))
        (failed,) = receive(engine)
        assert failed == Failed("the engine failed: ValueError: max_num_seqs is -1; it must be at least 1")
        assert child.wait_blocking(SOON) == 1


def test_aborts_of_unknown_requests_are_harmless() -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(odd_config("ready")))
        received = receive(engine)
        assert isinstance(next(received), EngineReady)
        send(engine, Abort(99, -1), Abort(99, 3), Submit(0, [1, 2], SamplingParams(max_tokens=1), [1], 0, "", 0.0))
        batch = next(received)
        assert isinstance(batch, TokensBatch)
        assert batch.finished == [Finished(0, 0, "length", None, None)]
        assert child.returncode is None


def _cpu(pid: int) -> float:
    return sum(map(cpu_seconds, (pid, *children(pid))))
