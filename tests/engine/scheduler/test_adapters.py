"""Requests that name adapters: these are loaded beside the steps, have slots, and never share what was computed."""

import random

import pytest

from stentor.engine.core.scheduler.adapters import AdapterCache
from stentor.engine.core.sequence import SequenceState
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef, DropAdapter, LoadAdapter, WarmAdapter
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.fake_engine import Engine


def state_of(engine: Engine, rid: int) -> SequenceState:
    return engine.scheduler._output.requests[rid].leader.state


def test_a_request_stands_aside_until_its_adapter_is_there_and_holds_nobody_up() -> None:
    engine = Engine(max_loras=1, slow_adapters=True)
    named = engine.submit([1, 2, 3], adapter=7)
    plain = engine.submit([4, 5, 6], max_tokens=2)
    while plain in engine.scheduler._output.requests:
        engine.step()
    assert state_of(engine, named) is SequenceState.LOADING
    assert engine.scheduler.stats().waiting_for == {"adapter": 1}
    assert engine.scheduler.stats().waiting_adapters == [7]
    engine.read_adapter()
    engine.step()
    assert engine.scheduler.stats().running_adapters == [7]
    engine.drain()
    engine.check_clients()


def test_an_adapter_that_cannot_be_loaded_ends_the_requests_that_name_it_and_no_others() -> None:
    engine = Engine(max_loras=2, slow_adapters=True)
    bad = [engine.submit([token], adapter=1) for token in (1, 2)]
    good = engine.submit([3], adapter=2)
    engine.step()
    engine.read_adapter("it is no adapter")
    assert engine.failed == {*bad}
    engine.slow_adapters = False
    engine.drain()
    assert engine.clients[good].finished
    engine.check_clients()


def test_rows_have_no_more_adapters_at_a_time_than_there_are_slots_and_the_first_to_come_goes_first() -> None:
    engine = Engine(max_loras=1, max_cpu_loras=2)
    first = engine.submit([1], adapter=1, max_tokens=3)
    second = engine.submit([2], adapter=2, max_tokens=3)
    third = engine.submit([3], adapter=1, max_tokens=3)
    plain = engine.submit([4], max_tokens=3)
    engine.step()
    assert state_of(engine, first) is state_of(engine, plain) is SequenceState.RUNNING
    assert state_of(engine, second) is state_of(engine, third) is SequenceState.WAITING
    assert engine.scheduler.stats().waiting_for == {"adapter_slot": 2}
    engine.drain()
    assert [new.tokens[0] for plan in engine.plans for new in plan.new] == [1, 4, 2, 3]
    engine.check_clients()


def test_a_prompt_finds_nothing_that_was_computed_with_another_adapter() -> None:
    engine = Engine(max_loras=3, num_blocks=64, max_model_len=64)
    prompt = list(range(1, 41))
    for adapter, cached in ((-1, False), (1, False), (2, False), (1, True), (-1, True), (2, True)):
        hits = engine.scheduler.stats().prefix_hits
        engine.submit(prompt, adapter=adapter, max_tokens=1)
        engine.drain()
        assert (engine.scheduler.stats().prefix_hits > hits) == cached
    engine.check_clients()


def test_a_new_worker_is_told_of_the_adapters_of_living_requests_before_they_go_on() -> None:
    engine = Engine(max_loras=2, max_cpu_loras=4)
    ended = engine.submit([9], adapter=3, max_tokens=1)
    engine.drain()
    live = engine.submit([1, 2], adapter=1, max_tokens=9)
    for _ in range(3):
        engine.step()
    engine.slow_adapters = True
    engine.kill_worker()
    assert state_of(engine, live) is SequenceState.LOADING
    engine.step()
    assert [adapter.number for adapter in engine.adapter_orders] == [1], f"{ended} has ended, with its adapter"
    engine.slow_adapters = False
    engine.drain()
    engine.check_clients()


def test_a_request_with_an_adapter_is_refused_where_none_are_served() -> None:
    engine = Engine()
    rid = engine.submit([1], adapter=1)
    assert engine.clients[rid].finished[0].reason == "error"


def test_an_adapter_may_be_loaded_before_anybody_names_it_and_whoever_asked_is_told() -> None:
    engine = Engine(max_loras=1)
    scheduler, adapter = engine.scheduler, AdapterRef(5, "five", "")
    assert scheduler.prerequisites.warm(WarmAdapter(0, adapter)) is None
    (order,), _ = scheduler.prerequisites.take_adapter_orders()
    assert order == LoadAdapter(adapter)
    batch, (answer,) = scheduler.prerequisites.adapter_loaded(AdapterLoaded(5, "no such file", True))
    assert not batch.finished
    assert (answer.ticket, answer.error, answer.missing) == (0, "no such file", True)
    assert scheduler.prerequisites.warm(WarmAdapter(1, adapter)) is None
    scheduler.prerequisites.take_adapter_orders()
    assert scheduler.prerequisites.adapter_loaded(AdapterLoaded(5))[1][0].error == ""
    again = scheduler.prerequisites.warm(WarmAdapter(2, adapter))
    assert again is not None
    assert again.ticket == 2


def test_of_adapters_that_nobody_names_the_least_recently_used_goes_first() -> None:
    cache = AdapterCache(2, 3)
    for number in (1, 2, 3):
        cache.hold(AdapterRef(number, "", ""), 0)
        cache.take_loaded(AdapterLoaded(number))
        cache.leave(number, 0)
    assert cache.hold(AdapterRef(1, "", ""), 1)
    cache.take_orders()
    assert not cache.hold(AdapterRef(4, "", ""), 2)
    assert cache.take_orders() == [DropAdapter(2), LoadAdapter(AdapterRef(4, "", ""))]
    cache.check_integrity()


def test_an_adapter_for_which_there_is_no_place_is_loaded_when_one_is_let_go() -> None:
    cache = AdapterCache(1, 1)
    cache.hold(AdapterRef(1, "", ""), 1)
    cache.take_loaded(AdapterLoaded(1))
    cache.hold(AdapterRef(2, "", ""), 2)
    assert cache.take_orders() == [LoadAdapter(AdapterRef(1, "", ""))]
    cache.leave(1, 1)
    assert cache.take_orders() == [DropAdapter(1), LoadAdapter(AdapterRef(2, "", ""))]


def test_whoever_comes_while_others_wait_for_a_place_waits_behind_them_though_its_adapter_is_there() -> None:
    cache = AdapterCache(1, 1)
    one, two = AdapterRef(1, "", ""), AdapterRef(2, "", "")
    cache.hold(one, 10)
    cache.take_loaded(AdapterLoaded(1))
    assert not cache.hold(two, 20)
    assert not cache.hold(one, 11)
    cache.take_orders()
    cache.leave(1, 10)
    assert cache.take_orders() == [DropAdapter(1), LoadAdapter(two)]
    cache.take_loaded(AdapterLoaded(2))
    cache.leave(2, 20)
    assert cache.take_orders() == [DropAdapter(2), LoadAdapter(one)]
    assert cache.take_loaded(AdapterLoaded(1)) == {11}
    cache.check_integrity()


def test_who_waited_behind_others_for_an_adapter_that_stayed_is_told_when_they_have_their_places() -> None:
    cache = AdapterCache(1, 2)
    for holder, number in ((10, 1), (20, 2)):
        cache.hold(AdapterRef(number, "", ""), holder)
        cache.take_loaded(AdapterLoaded(number))
    assert not cache.hold(AdapterRef(3, "", ""), 30)
    assert not cache.hold(AdapterRef(1, "", ""), 11)
    assert not cache.take_ready()
    cache.leave(2, 20)
    assert cache.take_ready() == [(11, 1)]
    assert cache.waiting == [1, 3]


def test_after_a_thousand_loads_nothing_is_left_but_what_there_is_room_for() -> None:
    cache = AdapterCache(2, 4)
    for number in range(1000):
        cache.hold(AdapterRef(number, "", ""), number)
        cache.take_loaded(AdapterLoaded(number))
        cache.enter(number)
        cache.exit(number)
        cache.leave(number, number)
        cache.take_orders()
        cache.take_placed()
        cache.check_integrity()
    assert len(cache._loaded) == 4
    assert len(cache._slots) == 2
    assert not cache._holders
    assert not cache._rows


@pytest.mark.proof(each="seed")
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_requests_deaths_and_loads_serves_each_with_its_own_adapter(seed: int) -> None:
    rng = random.Random(seed)
    engine = Engine(
        num_blocks=24,
        max_num_seqs=4,
        max_model_len=48,
        max_loras=2,
        max_cpu_loras=rng.randint(0, 4),
        slow_adapters=True,
    )
    for _ in range(60):
        match rng.randrange(8):
            case 0 | 1 | 2:
                prompt = [rng.randint(1, 3) for _ in range(rng.randint(1, 30))]
                params = SamplingParams(max_tokens=rng.randint(1, 8))
                engine.submit(prompt, params, seeds=range(rng.randint(1, 2)), adapter=rng.randint(-1, 5))
            case 3 if engine.clients:
                engine.abort(rng.choice(list(engine.clients)))
            case 4 if engine.adapter_orders:
                engine.read_adapter("broken" if rng.random() < 0.1 else "")
            case 5 if rng.random() < 0.2:
                engine.kill_worker()
            case _:
                engine.step()
    engine.slow_adapters = False
    engine.drain()
    engine.check_clients()
