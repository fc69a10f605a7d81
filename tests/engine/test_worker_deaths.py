"""A real engine process over workers that die: its requests go on with the next one, token by token."""

import os
import signal
import time
from pathlib import Path

import pytest

from stentor.engine.channel import Endpoint
from stentor.loadtest.processes import alive, stopped, tree
from stentor.protocols.ipc.actors import (
    Abort,
    ControlDone,
    EngineReady,
    Failed,
    Finished,
    Shutdown,
    Stalled,
    StartEngine,
    Stats,
    Submit,
    TokensBatch,
)
from stentor.protocols.ipc.config import RecoveryConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.e2e.processes import eventually
from stentor.tests.engine.engine_processes import PATIENT, SOON, WATCHING, engine_process, receive, send, worker_of
from stentor.tests.engine.fake_model import alone
from stentor.tests.engine.mortal_worker import (
    BLOCKS,
    ENDS,
    ENDS_LATER,
    FAILS,
    HANGS,
    MAX_MODEL_LEN,
    lives,
    mortal_config,
)

IMPATIENT = RecoveryConfig(watchdog_seconds=1.0, watchdog_factor=0.0)
"""Of an engine that is WATCHING: whoever is late and not stopped has all the time."""


def submit(rid: int, *special: int, tokens: int = 40, seeds: tuple[int, ...] = (5,)) -> Submit:
    prompt = [*special, rid % 12, 3, 4, 5, 6]
    return Submit(rid, prompt, SamplingParams(max_tokens=tokens), list(seeds), 0, "", rid * 1e-3)


class Received:
    """What an engine sent until it was asked for no more."""

    def __init__(self, engine: Endpoint) -> None:
        self._messages = receive(engine, figures=True)
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.prompts: list[int] = []
        self.ends: dict[tuple[int, int], Finished] = {}
        self.stalls: list[str] = []
        self.ready = 0
        self.failed: Failed | None = None
        self.controls: list[int] = []
        """Those that have taken effect."""
        self.errors: dict[int, str] = {}
        """Of those that have failed."""
        self.stats: Stats | None = None

    def next(self) -> None:
        match next(self._messages, None):
            case TokensBatch() as batch:
                self.prompts += [done.rid for done in batch.prompts]
                for gained in batch.tokens:
                    assert (gained.rid, gained.index) not in self.ends, "tokens after the end"
                    self.tokens.setdefault((gained.rid, gained.index), []).extend(gained.tokens)
                for end in batch.finished:
                    assert (end.rid, end.index) not in self.ends, "two terminal messages"
                    self.ends[end.rid, end.index] = end
                    self.stats = None  # what was told before is old
            case Stalled(message=why):
                self.stalls.append(why)
            case EngineReady():
                self.ready += 1
            case Failed() as failed:
                self.failed = failed
            case ControlDone(number=number, error=error):
                self.controls.append(number)
                if error:
                    self.errors[number] = error
            case Stats() as stats:
                self.stats = stats
            case None:
                raise AssertionError("the engine ended")
            case other:
                raise AssertionError(other)

    def until_ready(self) -> None:
        while not self.ready:
            self.next()

    def until_stalled(self, count: int) -> None:
        while len(self.stalls) < count:
            self.next()

    def until_tokens(self, count: int, *rids: int) -> None:
        """Of these requests, which must have so many."""
        while sum(len(tokens) for (rid, _), tokens in self.tokens.items() if rid in rids) < count:
            self.next()

    def until_done(self, control: int) -> None:
        while control not in self.controls:
            self.next()

    def until_ended(self, count: int) -> None:
        while len(self.ends) < count:
            self.next()

    def until_idle(self) -> Stats:
        """Until figures come of an engine that has nothing to do."""
        while self.stats is None or self.stats.running + self.stats.waiting or self.stats.free_blocks != BLOCKS:
            self.next()
        return self.stats

    def check(self, *submits: Submit) -> None:
        """Each sequence has ended with exactly the tokens that it gives alone."""
        for each in submits:
            for index in range(len(each.seeds)):
                expected = alone(each, index, MAX_MODEL_LEN)
                assert self.tokens.get((each.rid, index), []) == expected.tokens, f"sequence {each.rid}.{index}"
                assert self.ends[each.rid, index].reason == expected.reason
        assert sorted(self.prompts) == sorted(set(self.prompts)), "a prompt was done twice"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.proof(each="workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_requests_go_on_exactly_where_they_were_whenever_their_worker_is_killed(folder: Path, workers: int) -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(folder, workers=workers)))
        received = Received(engine)
        received.until_ready()
        submits: list[Submit] = []
        felt = 0
        for death in range(3):
            # whatever has ended before this process sees it, of these there are as many tokens
            rids = range(4 * death, 4 * death + 4)
            new = [submit(rid, tokens=60, seeds=(1, 2)[: 1 + rid % 2]) for rid in rids]
            submits += new
            send(engine, *new)
            received.until_tokens(80, *rids)
            worker = worker_of(child)
            os.kill(worker, signal.SIGKILL)
            received.until_stalled(death + 1)
            assert received.stalls[-1] == "the worker process was lost: killed by SIGKILL"
            assert not alive(worker)
            felt += len(received.ends) < 6 * (death + 1)
        received.until_ended(18)
        received.check(*submits)
        stats = received.until_idle()
        assert received.ready == 4
        assert (stats.worker_restarts, stats.poisoned, stats.watchdog_kills) == (3, 0, 0)
        assert felt <= stats.recovered <= 36
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0


@pytest.mark.parametrize(
    ("special", "workers"),
    [
        *((FAILS, 1), (ENDS, 3), (HANGS, 2)),
        *(pytest.param(special, 1, marks=pytest.mark.proof) for special in (ENDS, HANGS, ENDS_LATER)),
    ],
)
def test_a_request_that_always_kills_its_worker_is_failed_alone(folder: Path, special: int, workers: int) -> None:
    with engine_process(WATCHING) as (engine, child):
        recovery = IMPATIENT if special == HANGS else RecoveryConfig()
        send(engine, StartEngine(mortal_config(folder, recovery=recovery, workers=workers)))
        received = Received(engine)
        received.until_ready()
        submits = [submit(rid, *([special] if rid == 3 else [])) for rid in range(6)]
        send(engine, *submits)
        received.until_ended(6)
        received.check(*(each for each in submits if each.rid != 3))
        end = received.ends[3, 0]
        assert (end.reason, end.stop_token) == ("error", None)
        assert "ended the worker process" in str(end.message)
        stats = received.until_idle()
        assert stats.poisoned == 1
        assert stats.worker_restarts < 12
        eventually(lambda: lives(folder) == 1 + stats.worker_restarts, SOON, "another follows each")
        assert stats.watchdog_kills == (stats.worker_restarts if special == HANGS else 0)
        # and the engine is as good as new
        send(engine, submit(9))
        received.until_ended(7)
        received.check(submit(9))
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0


def test_a_poisonous_request_that_is_sent_again_and_again_does_not_end_the_engine(folder: Path) -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(folder)))
        received = Received(engine)
        received.until_ready()
        for rid in range(3):
            send(engine, submit(rid, ENDS))
            received.until_ended(rid + 1)
        assert {end.reason for end in received.ends.values()} == {"error"}
        assert received.failed is None
        send(engine, submit(9))
        received.until_ended(4)
        received.check(submit(9))
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0


def test_a_worker_that_hangs_is_found_killed_and_replaced(folder: Path) -> None:
    with engine_process(WATCHING) as (engine, child):
        send(engine, StartEngine(mortal_config(folder, "stops", "ready", recovery=IMPATIENT)))
        received = Received(engine)
        received.until_ready()
        worker = worker_of(child)
        submits = [submit(rid, tokens=80) for rid in range(4)]
        send(engine, *submits)
        received.until_ended(4)
        received.check(*submits)
        assert received.stalls == ["the worker process hung in a step: it was killed"]
        assert not alive(worker)
        assert received.until_idle().watchdog_kills == 1


def test_an_engine_that_was_stopped_itself_does_not_blame_its_worker(folder: Path) -> None:
    with engine_process(WATCHING) as (engine, child):
        send(engine, StartEngine(mortal_config(folder, "stops", recovery=RecoveryConfig(watchdog_seconds=600.0))))
        received = Received(engine)
        received.until_ready()
        worker = worker_of(child)
        send(engine, submit(0, tokens=100))
        eventually(lambda: stopped(worker), SOON, "it is stopped in a step")
        os.kill(child.pid, signal.SIGSTOP)
        os.kill(child.pid, signal.SIGCONT)
        time.sleep(2)  # the engine looks twice meanwhile, and has missed an hour
        os.kill(worker, signal.SIGCONT)
        received.until_ended(1)
        received.check(submit(0, tokens=100))
        assert received.stalls == []


def test_workers_that_die_while_loading_are_followed_by_others(folder: Path) -> None:
    with engine_process() as (engine, _):
        send(engine, StartEngine(mortal_config(folder, "brief", "vanishes", "refuses", "waits")))
        received = Received(engine)
        received.until_ready()
        send(engine, submit(0, tokens=100))
        received.until_stalled(3)
        # while no step can run requests come and go as always
        send(engine, submit(1), submit(2, tokens=100), Abort(2, -1))
        received.until_ended(1)
        assert received.ends[2, 0].reason == "abort"
        (folder / "go").touch()
        received.until_ended(3)
        received.check(submit(0, tokens=100), submit(1))
        assert received.stalls == [
            "the worker process was lost: exited with 7",
            "the worker process was lost while starting: exited with 7",
            "there is no such model",
        ]
        assert received.until_idle().worker_restarts == 3


def test_too_many_deaths_in_a_row_end_every_request_and_the_engine(folder: Path) -> None:
    recovery = RecoveryConfig(max_worker_deaths=3)
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(folder, "brief", "vanishes", recovery=recovery)))
        received = Received(engine)
        received.until_ready()
        send(engine, submit(0, tokens=100), submit(1, tokens=100, seeds=(1, 2)))
        while received.failed is None:
            received.next()
        assert received.failed.final
        assert "exited with 7 (3 deaths" in received.failed.message
        assert {end.reason for end in received.ends.values()} == {"error"}
        assert len(received.ends) == 3
        assert child.wait_blocking(SOON) == 1
        assert lives(folder) == 3


@pytest.mark.parametrize(("start", "final"), [("refuses", True), ("vanishes", False)])
def test_a_first_start_that_fails_ends_the_engine_which_says_whether_another_would_do_better(
    folder: Path, start: str, final: bool
) -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(folder, start)))
        received = Received(engine)
        while received.failed is None:
            received.next()
        assert received.failed.final == final
        assert child.wait_blocking(SOON) == 1
        assert lives(folder) == 1


def test_completed_steps_between_deaths_are_no_row_of_them(folder: Path) -> None:
    with engine_process() as (engine, child):
        send(engine, StartEngine(mortal_config(folder, recovery=RecoveryConfig(max_worker_deaths=2))))
        received = Received(engine)
        received.until_ready()
        for rid in range(4):
            send(engine, submit(rid, tokens=110))
            received.until_tokens(8, rid)
            os.kill(worker_of(child), signal.SIGKILL)
        received.until_ended(4)
        received.check(*(submit(rid, tokens=110) for rid in range(4)))


def test_what_does_not_fit_into_a_smaller_cache_any_more_is_failed_and_the_rest_goes_on(folder: Path) -> None:
    large, small = submit(0, tokens=100), submit(1, tokens=50)
    with engine_process() as (engine, _):
        send(engine, StartEngine(mortal_config(folder, "brief", "smaller")))
        received = Received(engine)
        received.until_ready()
        send(engine, large, small)
        received.until_ended(2)
        received.check(small)
        assert received.ends[0, 0].reason == "error"
        assert "KV cache holds 64" in str(received.ends[0, 0].message)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_die_leave_no_descriptor_and_no_process_in_their_engine(folder: Path, workers: int) -> None:
    with engine_process() as (engine, child):
        recovery = RecoveryConfig(max_worker_deaths=100)
        send(engine, StartEngine(mortal_config(folder, recovery=recovery, workers=workers)))
        received = Received(engine)
        counts = []
        for life in range(1, 6):
            while received.ready < life:
                received.next()
            counts.append((len(os.listdir(f"/proc/{child.pid}/fd")), len(tree(child.pid))))
            os.kill(worker_of(child), signal.SIGKILL)
        assert len(set(counts)) == 1, counts


def test_told_to_end_while_the_next_worker_loads_it_ends_both_at_once(folder: Path) -> None:
    with engine_process(PATIENT) as (engine, child):
        send(engine, StartEngine(mortal_config(folder, "ready", "silent")))
        received = Received(engine)
        received.until_ready()
        first = worker_of(child)
        os.kill(first, signal.SIGKILL)
        received.until_stalled(1)
        eventually(lambda: lives(folder) == 2, SOON, "the next one is started")
        second = worker_of(child)
        assert second != first
        send(engine, Shutdown())
        assert child.wait_blocking(SOON) == 0
        assert not alive(second)
