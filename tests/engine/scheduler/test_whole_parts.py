"""Parts of a prompt whose tokens see each other, as those of a picture do: each is computed in one step, and no row
begins within one."""

import random

import pytest

from stentor.engine.client.media import Media
from stentor.tests.engine.scheduler.any_order import run_at_random
from stentor.tests.engine.scheduler.test_media_requests import picture, seeing, submit_random


def test_a_prompt_is_cut_before_a_span_that_is_computed_in_one_step_and_not_within_it() -> None:
    engine = seeing(max_prefill_chunk=4, whole_spans=6)
    engine.submit([1, 2, *[9] * 5, 3, 4, 5, 6, 7, *[9] * 3, 8], media=[picture(0, 2), picture(1, 12)], max_tokens=1)
    engine.drain()
    engine.check_clients()
    steps = [(row.start, row.count) for plan in engine.plans for row in plan.rows]
    assert steps == [(0, 2), (2, 5), (7, 4), (11, 4), (15, 1)]


def test_only_the_parts_of_a_medium_between_its_texts_are_computed_in_one_step_each() -> None:
    engine = seeing(max_prefill_chunk=3, whole_spans=3)
    film = picture(0, 2)._replace(length=8, runs=((0, 3), (5, 8)))
    engine.submit([1, 2, 9, 9, 9, 3, 4, 9, 9, 9, 5], media=[film], max_tokens=1)
    engine.drain()
    engine.check_clients()
    steps = [(row.start, row.count) for plan in engine.plans for row in plan.rows]
    assert steps == [(0, 2), (2, 3), (5, 2), (7, 3), (10, 1)]


def test_a_span_goes_beyond_the_budget_beside_rows_that_decode() -> None:
    engine = seeing(max_mixed_prefill_tokens=2, whole_spans=6)
    engine.submit([1, 2], max_tokens=12)
    engine.step()
    engine.submit([1, *[9] * 5, 3], media=[picture(0, 1)], max_tokens=1)
    engine.drain()
    engine.check_clients()
    assert [row.count for plan in engine.plans for row in plan.rows if row.count > 2] == [5]


def test_a_prompt_that_sees_itself_whole_is_computed_in_one_step_after_all_its_media() -> None:
    engine = seeing(max_mixed_prefill_tokens=2, max_encodings=1, whole_spans=16, whole_prompts=True, sliced=True)
    engine.submit([1, 2], max_tokens=12)
    engine.step()
    prompt = [1, *[9] * 5, 3, *[9] * 3, 4]
    rids = [engine.submit(prompt, max_tokens=2, media=[picture(0, 1), picture(1, 7)]) for _ in range(2)]
    engine.drain()
    engine.check_clients()
    assert [(row.start, row.count) for plan in engine.plans for row in plan.rows if row.count > 2] == [(0, 11)] * 2
    found = [engine.clients[rid].prompts[0].cached_tokens for rid in rids]
    assert found == [0, 0], "nothing of a prompt is of use to another"
    refused = engine.submit([1] * 17, max_tokens=2)
    assert "the prompt has 17 tokens, media included, and" in (engine.clients[refused].finished[0].message or "")


def test_sequences_of_one_whole_prompt_compute_it_each() -> None:
    engine = seeing(whole_spans=16, whole_prompts=True)
    engine.submit([1, *[9] * 5, *[3] * 4], max_tokens=2, media=[picture(0, 1)], seeds=[1, 2, 3])
    engine.drain()
    engine.check_clients()
    assert [row.count for plan in engine.plans for row in plan.rows if row.start == 0] == [10] * 3


def test_a_sound_may_be_longer_than_a_step_where_tokens_of_a_picture_see_each_other() -> None:
    engine = seeing(max_prefill_chunk=3, whole_spans=3)
    engine.submit([1, *[9] * 5, 3], media=[picture(0, 1)._replace(causal=True)], max_tokens=2)
    engine.drain()
    engine.check_clients()
    assert [(row.start, row.count) for plan in engine.plans for row in plan.rows][:3] == [(0, 3), (3, 3), (6, 1)]
    assert all(span.causal for plan in engine.plans for new in plan.new for span in new.spans)


def cached_again(media: Media, prompt: list[int], **changes: int) -> int:
    """Tokens that the second of two equal prompts finds, in blocks of 4."""
    engine = seeing(prefix_cache=True, **changes)
    engine.submit(prompt, media=[media], max_tokens=1)
    engine.drain()
    again = engine.submit(prompt, media=[media], max_tokens=1)
    engine.drain()
    engine.check_clients()
    return engine.clients[again].prompts[0].cached_tokens


@pytest.mark.parametrize(
    ("whole", "causal", "full", "at_the_end"),
    [
        (6, False, 4, 5),
        (6, True, 8, 9),  # a sound
        (0, False, 8, 9),  # no token sees a later one
    ],
)
def test_a_row_begins_before_a_picture_whose_tokens_see_each_other_and_within_any_other(
    whole: int, causal: bool, full: int, at_the_end: int
) -> None:
    media = picture(0, 5)._replace(causal=causal)
    prompt = [1, 2, 3, 4, 5, *[9] * 5]
    assert cached_again(media, [*prompt, 6], whole_spans=whole) == 10, "in a copy of the block behind it"
    assert cached_again(media, [*prompt, 6], whole_spans=whole, num_blocks=3) == full, "no block is free for a copy"
    assert cached_again(media, prompt, whole_spans=whole) == at_the_end


@pytest.mark.parametrize(("second", "found"), [(6, 8), (2, 4), (4, 0)])
def test_a_row_may_begin_between_the_parts_of_a_medium_and_within_none(second: int, found: int) -> None:
    film = picture(0, 2)._replace(length=8, runs=((0, second), (second, 8)))
    assert cached_again(film, [1, 2, *[9] * 8, 6], whole_spans=6, num_blocks=3) == found


@pytest.mark.parametrize(("blocks", "starts"), [(32, [0, 10]), (3, [0, 4])])
def test_a_sequence_whose_prompt_cannot_be_pinned_within_a_picture_begins_behind_it_or_before(
    blocks: int, starts: list[int]
) -> None:
    engine = seeing(prefix_cache=True, whole_spans=6, num_blocks=blocks)
    engine.submit([1, 2, 3, 4, 5, *[9] * 5, 6], max_tokens=1, media=[picture(0, 5)], seeds=[1, 2])
    engine.drain()
    engine.check_clients()
    rows = [row for plan in engine.plans for row in plan.rows]
    assert [row.start for row in rows if row.start in (0, 4, 8, 10)] == starts


@pytest.mark.parametrize(("windows", "host_blocks"), [((0,), 0), ((0, 5), 0), ((0, 5), 6)])
def test_of_many_requests_in_a_full_cache_no_row_begins_within_a_picture(
    windows: tuple[int, ...], host_blocks: int
) -> None:
    preemptions = hits = 0
    for seed in range(6):
        rng = random.Random(seed)
        sizes = {"num_blocks": rng.randint(14, 16) * len(windows), "block_size": 4, "max_num_seqs": rng.randint(4, 8)}
        limits = {"max_model_len": 56, "max_prefill_chunk": 6, "whole_spans": 6, "max_drafts": rng.choice([0, 0, 2])}
        engine = seeing(**sizes, **limits, windows=windows, host_blocks=host_blocks, encoder_capacity=24)
        kills = (0.04, engine.kill_worker), (0.04, engine.kill_engine)
        run_at_random(engine, rng, submit_random, *kills, requests=25)
        preemptions += engine.scheduler.stats().preemptions
        hits += engine.scheduler.stats().prefix_hits
    assert preemptions, "the pools were not too small"
    assert hits > 100
