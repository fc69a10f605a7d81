"""Requests with media in their prompts: what is encoded when, what is shared, what is computed in one step."""

import random
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stentor.engine.client.media import Media
from stentor.protocols.ipc.cache_groups import CacheGroup, group_of
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import RowFault, StepResult
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.scheduler.any_order import SEEDS, AnyOrder, many, random_prompt, sizes

LENGTHS = (5, 3, 4, 6)
"""Of media by number."""


def picture(number: int, start: int, grid: tuple[int, int, int] | None = None, length: int = 0) -> Media:
    data = number.to_bytes(2, "little") * 8
    return Media(data, blake2b(data, digest_size=16).digest(), start, length or LENGTHS[number % len(LENGTHS)], grid)


def seeing(**changes: Any) -> Engine:
    sizes: dict[str, Any] = {"encoder_capacity": 16, "max_encodings": 2, "max_num_batched_tokens": 64, "num_blocks": 32}
    return Engine(**{**sizes, **changes})


def test_media_are_encoded_once_for_all_who_bring_them_and_found_again_later() -> None:
    engine = seeing()
    for number in range(3):
        engine.submit([number, *[9] * 6], media=[picture(0, 1)])
    engine.drain()
    engine.submit([8, *[9] * 6], media=[picture(0, 1)])
    engine.drain()
    engine.check_clients()
    assert [job.encoder_slot for plan in engine.plans for job in plan.encode] == [0]


def test_a_worker_is_told_what_nobody_finds_any_more() -> None:
    engine = seeing(encoder_capacity=8)
    for number in range(3):  # of 5, 3 and 4 embeddings
        engine.submit([number, *[9] * 6], media=[picture(number, 1)])
        engine.drain()
    engine.check_clients()
    assert [(plan.forgotten, len(plan.encode)) for plan in engine.plans if plan.encode] == [([], 1), ([], 1), ([0], 1)]


def test_a_row_is_told_of_all_its_pictures_that_have_a_grid_and_reads_those_that_are_ahead() -> None:
    engine = seeing(prefix_cache=True)
    media = [picture(0, 1, (1, 1, 5)), picture(1, 8, (1, 1, 3))]
    prompt = [5, *[9] * 5, 6, 6, *[9] * 3, 7, 7]
    for end in ([3], [4]):
        engine.submit([*prompt, *end], media=media)
        engine.drain()
    engine.check_clients()
    first, again = (plan.new[0].spans for plan in engine.plans if plan.new)
    assert [(span.encoder_slot, span.start, span.grid) for span in first] == [(0, 1, (1, 1, 5)), (1, 8, (1, 1, 3))]
    assert [span.encoder_slot for span in again] == [-1, -1], "their blocks were known"


def test_media_are_encoded_in_slices_whether_rows_decode_beside_them_or_not() -> None:
    engine = seeing(sliced=True)
    engine.submit([1, 2], max_tokens=9)
    engine.step()
    engine.submit([1, *[9] * 5, 3], media=[picture(0, 1)], max_tokens=3)
    engine.drain()
    engine.submit([4, *[9] * 3, 3], media=[picture(1, 1)], max_tokens=3)
    engine.drain()
    engine.check_clients()
    beside, alone = (
        [bool(plan.rows) for plan in engine.plans for job in plan.encode if job.encoder_slot == slot] for slot in (0, 1)
    )
    assert beside == [True] * 4, "three, and one that was planned before the last was known to be the last"
    assert alone == [True, False, False, False], "its first token is computed in the first of the steps"
    assert all(job.sliced for plan in engine.plans for job in plan.encode)


def test_a_row_that_ends_leaves_the_rest_of_an_encoding_in_slices_so_that_who_comes_then_waits_for_one() -> None:
    engine = seeing(sliced=True)
    engine.submit([1, 2], max_tokens=2)
    engine.step()
    engine.submit([1, *[9] * 5, 3], media=[picture(0, 1)], max_tokens=3)
    engine.step()
    engine.step()
    late = engine.submit([1, 2, 3], max_tokens=1)
    while late not in {rid for rid, client in engine.clients.items() if client.finished}:
        engine.step()
    assert all(job.sliced for plan in engine.plans for job in plan.encode)
    engine.drain()
    engine.check_clients()


def test_a_row_enters_at_a_picture_that_is_encoded_in_slices() -> None:
    engine = seeing(sliced=True)
    engine.submit([1, 2], max_tokens=12)
    engine.step()
    engine.submit([*[9] * 5, 3], media=[picture(0, 0)], max_tokens=3)
    engine.drain()
    engine.check_clients()
    entered = next(plan for plan in engine.plans if any(new.spans for new in plan.new))
    assert [job.sliced for job in entered.encode] == [True]
    assert {row.slot for row in entered.rows} == {0}, "it has no position to compute yet"
    assert sum(bool(plan.encode) for plan in engine.plans) == 4, "as many as beside rows that decode"


def test_who_waits_for_media_makes_no_burst_of_prompts() -> None:
    engine = seeing(sliced=True, max_num_seqs=8, max_mixed_prefill_tokens=2, encoder_capacity=64)
    engine.submit([1, 2], max_tokens=30)
    engine.step()
    for number in range(4):
        engine.submit([number, *[9] * LENGTHS[number], 3], media=[picture(number, 1)], max_tokens=1)
    engine.step()
    engine.drain()
    engine.check_clients()
    prefill = [[row.count for row in plan.rows if row.start + row.count <= 8 and row.slot] for plan in engine.plans]
    assert max(sum(counts) for counts in prefill) == 2


@pytest.mark.proof
def test_64_pictures_at_once_give_each_step_of_8_streams_one_slice_and_few_tokens() -> None:
    engine = seeing(
        sliced=True,
        max_num_seqs=80,
        num_blocks=1024,
        encoder_capacity=512,
        max_num_batched_tokens=512,
        max_mixed_prefill_tokens=6,
        max_model_len=320,
    )
    for number in range(8):
        engine.submit([number, 2], max_tokens=300)
    engine.step()
    for number in range(64):
        length = LENGTHS[number % len(LENGTHS)]
        engine.submit([number % 12, *[9] * length, 3], media=[picture(number, 1)], max_tokens=1)
    engine.drain()
    engine.check_clients()
    beside = [plan for plan in engine.plans[1:] if any(row.slot < 8 for row in plan.rows)]
    read = max(place for place, plan in enumerate(beside) if plan.encode)
    assert read > 64 * 3, "three slices each"
    for plan in beside[:read]:
        assert sum(row.slot < 8 for row in plan.rows) == 8, "no stream sits out a step"
        assert len(plan.encode) <= 1
        assert sum(row.count for row in plan.rows if row.slot >= 8) <= 6 + 1


def test_of_known_prompts_with_media_no_more_begin_beside_rows_that_decode_than_the_worker_has_room_for() -> None:
    engine = seeing(sliced=True, media_room=2, max_num_seqs=8, max_mixed_prefill_tokens=8, encoder_capacity=64)
    prompt = [1, *[9] * LENGTHS[0], 3]
    engine.submit(prompt, media=[picture(0, 1)], max_tokens=1)
    engine.drain()
    engine.submit([8, 2], max_tokens=20)
    engine.step()
    engine.step()
    for _ in range(5):
        engine.submit(prompt, media=[picture(0, 1)], max_tokens=1)
    before = len(engine.plans)
    engine.drain()
    engine.check_clients()
    begun = [len(plan.new) for plan in engine.plans[before:]]
    assert (max(begun), sum(begun)) == (2, 5)


def test_beside_rows_that_decode_prompts_with_media_have_the_room_that_the_worker_tells_and_texts_all_of_theirs() -> (
    None
):
    engine = seeing(sliced=True, media_room=3, max_num_seqs=8, max_mixed_prefill_tokens=8, encoder_capacity=64)
    engine.submit([8, 2], max_tokens=60)
    engine.step()
    engine.step()
    for number in range(4):
        engine.submit([number, *[9] * LENGTHS[number], 3, 4, 5, 6], media=[picture(number, 1)], max_tokens=1)
    engine.submit([*range(4), *[9] * 12], max_tokens=1)
    engine.drain()
    engine.check_clients()
    seers = {new.slot for plan in engine.plans for new in plan.new if new.spans}
    assert len(seers) == 4
    beside = [plan for plan in engine.plans[2:] if any(row.slot == 0 for row in plan.rows)]
    seen = [sum(row.count for row in plan.rows if row.slot in seers) for plan in beside]
    assert (max(seen), sum(seen)) == (3, sum(LENGTHS) + 4 * 5)
    assert max(row.count for plan in beside for row in plan.rows if row.slot not in seers) > 3


def test_alone_prompts_with_media_have_all_of_a_step() -> None:
    engine = seeing(sliced=True, media_room=3)
    engine.submit([1, 2], max_tokens=1)
    engine.drain()
    engine.submit([1, *[9] * 5, 3, 4, 5, 6], media=[picture(0, 1)], max_tokens=1)
    engine.drain()
    assert max(row.count for plan in engine.plans for row in plan.rows) == 9


def test_beside_rows_that_have_media_themselves_prompts_with_media_have_all_of_a_step() -> None:
    engine = seeing(sliced=True, media_room=3, max_num_seqs=8, encoder_capacity=64)
    engine.submit([1, *[9] * 5, 3], media=[picture(0, 1)], max_tokens=60)
    engine.step()
    engine.step()
    engine.submit([1, *[9] * 5, 3, 4, 5, 6], media=[picture(1, 1)], max_tokens=1)
    engine.drain()
    engine.check_clients()
    (second,) = [new.slot for plan in engine.plans[1:] for new in plan.new]
    assert max(row.count for plan in engine.plans for row in plan.rows if row.slot == second) == 9
    assert any({0, second} <= {row.slot for row in plan.rows} for plan in engine.plans)


def test_a_picture_whose_slices_kill_the_worker_is_found_and_nobody_else_ends() -> None:
    engine = seeing(sliced=True)
    others = [engine.submit([number, 2], max_tokens=40) for number in range(2)]
    engine.step()
    poison = engine.submit([*[9] * 5, 3], media=[picture(0, 0)])
    for _ in range(60):
        if poison in engine.failed:
            break
        engine.plan()
        if engine.plans[-1].encode:
            engine.kill_worker()
        elif engine.results:
            engine.deliver()
    assert engine.failed == {poison}
    engine.drain()
    assert not set(others) & engine.failed
    engine.check_clients()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"whole_spans": 4}, "a piece of media takes 5 positions, and the model computes it in one step, of at most 4"),
        ({"encoder_capacity": 4}, "the media of the prompt take 5 embeddings, and the encoder cache holds 4"),
    ],
)
def test_media_that_never_fit_are_refused(changes: dict[str, int], message: str) -> None:
    engine = seeing(**changes)
    rid = engine.submit([1, *[9] * 5, 3], media=[picture(0, 1)._replace(field="input[0]")])
    end = engine.clients[rid].finished[0]
    assert message in (end.message or "")
    assert (end.fault, end.field) == ("media", "input[0]")


def test_media_are_asked_for_when_they_have_to_be_encoded_and_not_where_their_blocks_are_known() -> None:
    engine = seeing(late_media=True, prefix_cache=True)
    prompt = [5, *[9] * 5, 6, 6]
    first = engine.submit([*prompt, 3], media=[picture(0, 1)])
    assert engine.wanted == [first]
    engine.step()
    assert not engine.plans
    assert engine.scheduler.stats().waiting_for == {"media": 1}
    engine.drain()
    again = engine.submit([*prompt, 4], media=[picture(0, 1)])
    other = engine.submit([4, *prompt], media=[picture(0, 2)])
    late = engine.submit([*prompt[:6], 7, *[9] * 3, 3], media=[picture(0, 1), picture(1, 7)])
    assert engine.wanted == [late], "one is known in its place, and one is encoded"
    before = len(engine.plans)
    while not {again, other} <= {rid for rid, client in engine.clients.items() if client.finished}:
        engine.step()
    assert not any(plan.encode for plan in engine.plans[before:])
    engine.drain()
    engine.check_clients()


def test_a_request_whose_blocks_have_gone_while_it_waited_asks_for_its_media() -> None:
    engine = seeing(late_media=True, prefix_cache=True, max_num_seqs=1)
    prompt = [5, *[9] * 5, 6, 6]
    engine.submit([*prompt, 3], media=[picture(0, 1)])
    engine.drain()
    engine.submit([1, 2], max_tokens=6)
    engine.step()
    again = engine.submit([*prompt, 4], media=[picture(0, 1)])
    assert not engine.wanted
    engine.scheduler.reset_prefix_cache()
    engine.kill_worker()
    asked: list[int] = []
    while not asked:
        engine.step()
        asked = engine.wanted.copy()
    assert asked == [again]
    engine.drain()
    engine.check_clients()


def test_a_request_whose_media_cannot_be_written_ends_with_the_reason() -> None:
    engine = seeing(late_media=True)
    rid = engine.submit([5, *[9] * 5, 6], media=[picture(0, 1)])
    engine.write(error="no space is left")
    assert engine.clients[rid].finished[0].message == "no space is left"
    engine.check_empty()


def test_media_to_which_later_positions_attend_are_held_until_others_are_attended_to_or_the_row_ends() -> None:
    engine = seeing(lasting=True, encoder_capacity=2, max_num_batched_tokens=4, prefix_cache=True)
    media = [picture(0, 1, length=1), picture(1, 5, length=1)]
    rid = engine.submit([8, 9, 6, 6, 6, 9, 6, 6], media=media, max_tokens=4)
    waits = engine.submit([7, 9, 6], media=[picture(2, 1, length=1)], max_tokens=1)
    held = []
    while not (engine.clients[rid].finished and engine.clients[waits].finished):
        engine.step()
        held.append(engine.scheduler._kv_cache.encoder_cache.num_holders)
    assert max(held) == 2
    ends = [client.finished[0].reason for client in (engine.clients[rid], engine.clients[waits])]
    assert ends == ["length", "length"]
    assert not engine.scheduler._kv_cache.encoder_cache.num_holders
    engine.check_clients()


def test_a_known_prompt_reads_only_media_to_which_what_is_left_of_it_attends() -> None:
    engine = seeing(lasting=True, prefix_cache=True)
    prompt, media = [8, 9, 6, 6, 6, 9, *[6] * 8], [picture(0, 1, length=1), picture(1, 5, length=1)]
    for last in (3, 4):
        engine.submit([*prompt, last], media=media)
        engine.drain()
    engine.check_clients()
    first, again = (
        [(span.start, span.encoder_slot) for span in new.spans] for plan in engine.plans for new in plan.new
    )
    assert (first, again) == ([(1, 0), (5, 1)], [(5, 1)])


def test_more_media_than_are_held_at_once_are_refused() -> None:
    engine = seeing(lasting=True, encoder_capacity=1)
    rid = engine.submit([9, 9, 3], media=[picture(0, 0, length=1), picture(1, 1, length=1)])
    assert "the media of the prompt take 2 pictures, and the encoder cache holds 1" in str(
        engine.clients[rid].finished[0].message
    )


def submit_random(engine: Engine, rng: random.Random) -> int:
    shape = random.Random(rng.randrange(12))  # few, so that prompts come again
    prompt = random_prompt(shape)
    media: list[Media] = []
    cross = group_of(engine.sizes["groups"], "cross")
    lasting = cross is not None and cross.lasting
    for number in shape.sample(range(6), shape.randint(0, 2)):
        grid = (1, 1, LENGTHS[number % len(LENGTHS)]) if shape.random() < 0.5 and not lasting else None
        made = picture(number, len(prompt), grid, int(lasting))
        runs = ((0, 2), (made.length - 1, made.length)) if number % 2 and not lasting else ()
        media.append(made._replace(runs=runs, causal=number == 4))
        prompt = [*prompt, *[9] * media[-1].length, *random_prompt(shape)[: shape.randint(0, 6)]]
    params = SamplingParams(
        max_tokens=rng.choice([0, 1, 2, 5, 9]),
        eos_token_ids=rng.choice([(), (0,), (0, 1)]),
        prompt_logprobs=rng.choice([None, None, None, 0]),
    )
    seeds = [rng.getrandbits(64) for _ in range(rng.choice([1, 1, 3]))]
    return engine.submit(prompt, params, seeds=seeds, priority=rng.choice([0, 0, -3, 7]), media=media)


class MediaMachine(AnyOrder):
    @initialize(
        sizes=sizes(
            st.integers(70, 120),
            max_num_batched_tokens=st.sampled_from([14, 24, 64]),
            encoder_capacity=st.sampled_from([12, 20]),
            max_encodings=st.integers(1, 3),
            whole_spans=st.sampled_from([0, 6]),
            whole_prompts=st.booleans(),
            sliced=st.booleans(),
            lasting=st.booleans(),
            late_media=st.booleans(),
            media_room=st.sampled_from([0, 1, 3]),
            windows=st.sampled_from([(0,), (0, 5)]),
        ),
        seed=SEEDS,
    )
    def start(self, sizes: dict[str, Any], seed: int) -> None:
        if sizes["whole_spans"]:
            sizes = {**sizes, "max_prefill_chunk": max(6, sizes["max_prefill_chunk"]), "lasting": False}
            if sizes["whole_prompts"]:
                room = sizes["max_num_batched_tokens"] - sizes["max_num_seqs"]
                sizes = {**sizes, "whole_spans": max(1, min(sizes["max_prefill_chunk"], room))}
        else:
            sizes = {**sizes, "whole_prompts": False}
        self.begin(seed, max_model_len=60, **sizes)

    @rule()
    def submit(self) -> None:
        submit_random(self.engine, self.rng)

    @rule()
    def kill_worker(self) -> None:
        self.engine.restart_with(self._cross())

    @rule(capacity=st.integers(6, 20))
    def kill_worker_and_start_one_of_another_size(self, capacity: int) -> None:
        self.engine.restart_with(msgspec.structs.replace(self._cross(), capacity=capacity))

    def _cross(self) -> CacheGroup:
        found = group_of(self.engine.sizes["groups"], "cross")
        assert found is not None
        return found

    def end(self) -> None:
        super().end()
        assert not self.engine.scheduler._kv_cache.encoder_cache.num_holders


TestMediaInAnyOrder = MediaMachine.TestCase
TestMediaInAnyOrder.settings = many(120)


@pytest.mark.parametrize(("start", "blamed"), [(1, ("media", "messages[0].content[1]")), (-1, ("", ""))])
def test_a_request_whose_media_the_worker_cannot_take_ends_at_once(start: int, blamed: tuple[str, str]) -> None:
    engine = seeing()
    media = picture(0, 1)._replace(field="messages[0].content[1]")
    rid = engine.submit([1, *[9] * 5, 3], media=[media], max_tokens=4)
    other = engine.submit([1, 2, 3], max_tokens=4)
    plan = engine.scheduler.plan(0.0)
    assert plan is not None
    slots = {row.slot: number for number, row in enumerate(plan.rows)}
    fault = RowFault(plan.new[0].slot, "it is odd", start)
    ended = engine.scheduler.complete(StepResult(0, plan.step, [7] * len(slots), None, [], 0.0, faults=[fault]), 0.0)
    found = [(end.rid, end.reason, end.message, end.fault, end.field) for end in ended.finished]
    assert found == [(rid, "error", "it is odd", *blamed)]
    assert [gained.rid for gained in ended.tokens] == [other]
    engine.scheduler.check_integrity()
    assert engine.scheduler.take_released() == [rid]
    engine.submit([1, *[9] * 5, 4], media=[media])
    again = engine.scheduler.plan(0.0)
    assert again is not None
    assert (again.forgotten, [job.encoder_slot for job in again.encode]) == ([0], [0]), "it is encoded anew"
