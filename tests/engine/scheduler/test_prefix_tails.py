"""Prompts that end, or part from what is known, within a block: they go on there, in a copy of it."""

import pytest

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.scheduler.test_media_requests import picture, seeing
from stentor.tests.engine.scheduler.test_prefix_reuse import cached

SIZE = 16


def engine_of(**changes: object) -> Engine:
    given = {"num_blocks": 64, "block_size": SIZE, "max_num_batched_tokens": 64, "max_model_len": 200}
    return Engine(**{**given, **changes})  # type: ignore[arg-type]


def numbers(length: int, first: int = 0) -> list[int]:
    return [(first + number) % 11 for number in range(length)]


def computed(engine: Engine, prompt: list[int], *, max_tokens: int = 1, salt: str = "") -> int:
    """Tokens of a prompt that are computed for it."""
    before = engine.worker.computed_tokens
    rid = engine.submit(prompt, max_tokens=max_tokens, salt=salt)
    engine.drain()
    engine.check_clients()
    found = engine.worker.computed_tokens - before - (max_tokens - 1)
    assert found == len(prompt) - cached(engine, rid)
    return found


@pytest.mark.parametrize("windows", [(0,), (0, 20), (20,), (5, 0, 40)])
@pytest.mark.parametrize("max_tokens", [1, 5, 40])
@pytest.mark.parametrize("length", [5, 16, 31, 32, 33, 40])
def test_of_a_prompt_that_comes_again_its_last_token_is_computed(
    length: int, max_tokens: int, windows: tuple[int, ...]
) -> None:
    engine = engine_of(windows=windows)
    found = [computed(engine, numbers(length), max_tokens=max_tokens) for _ in range(3)]
    assert found == [length, 1, 1]
    pairs = [pair for plan in engine.plans for pair in plan.copies]
    groups = 0 if length == 33 else len(windows)  # two whole blocks, and the token
    assert len(pairs) == 2 * groups


def test_a_prompt_whose_first_request_still_runs_is_found_up_to_its_end() -> None:
    engine = engine_of()
    engine.submit(numbers(40), max_tokens=30)
    engine.step()
    engine.step()
    before = engine.worker.computed_tokens
    again = engine.submit(numbers(40), max_tokens=1)
    engine.step()
    assert engine.worker.computed_tokens - before == 1 + 1, "a token of each"
    engine.drain()
    engine.check_clients()
    assert cached(engine, again) == 39


def test_what_an_aborted_request_has_computed_is_found() -> None:
    engine = engine_of(max_prefill_chunk=20)
    rid = engine.submit(numbers(50))
    engine.step()
    engine.step()
    engine.abort(rid)
    assert computed(engine, numbers(50)) in (10, 30), "but for chunks whose results had not come"


def test_a_conversation_goes_on_within_the_block_where_its_answer_ended() -> None:
    engine = engine_of()
    first = engine.submit(numbers(40), max_tokens=9)
    engine.drain()
    answer = engine.clients[first].tokens[0]
    assert computed(engine, [*numbers(40), *answer, 7, 7]) == 1 + 2, "the last of the answer, and what is new"


def test_a_prompt_that_parts_within_a_block_is_computed_from_there_on() -> None:
    engine = engine_of()
    computed(engine, numbers(64))
    assert computed(engine, [*numbers(39), *numbers(20, first=1)]) == 20


def test_of_several_that_follow_one_prefix_the_one_that_shares_most_is_taken() -> None:
    engine = engine_of()
    for shared, own in ((4, 7), (10, 8), (7, 9)):
        computed(engine, [*[3] * (SIZE + shared), *[own] * 20])
    assert computed(engine, [*[3] * (SIZE + 10), *[4] * 5]) == 5


def test_other_salts_share_no_part_of_a_block() -> None:
    engine = engine_of()
    assert [computed(engine, numbers(10), salt=salt) for salt in ("", "a", "b", "a")] == [10, 10, 10, 1]


def test_media_within_the_block_are_compared_too() -> None:
    engine = seeing(block_size=SIZE)
    prompt = [1, 2, *[9] * 5, 6, 6]
    found = []
    for number in (0, 0, 4, 0):  # 0 and 4 are of one length
        rid = engine.submit(prompt, media=[picture(number, 2)], max_tokens=1)
        engine.drain()
        found.append(cached(engine, rid))
    engine.check_clients()
    assert found == [0, 8, 2, 8], "up to the last token, or to where another picture begins"
    assert sum(len(plan.encode) for plan in engine.plans) == 2


def test_each_sequence_of_a_request_computes_the_last_token_of_its_prompt() -> None:
    engine = engine_of()
    engine.submit(numbers(40), max_tokens=1, seeds=[1, 2, 3])
    engine.drain()
    engine.check_clients()
    assert engine.worker.computed_tokens == 40 + 2


def test_a_preempted_row_goes_on_where_it_was() -> None:
    engine = engine_of()
    engine.submit(numbers(20), max_tokens=30)
    for _ in range(6):
        engine.step()
    engine.deliver()
    before = engine.worker.computed_tokens
    engine.scheduler.recompute()
    engine.step()
    assert engine.worker.computed_tokens - before == 1
    engine.drain()
    engine.check_clients()


def test_a_copy_that_finds_no_room_beside_its_original_is_computed_instead() -> None:
    engine = engine_of(num_blocks=3, max_num_seqs=1)
    assert computed(engine, numbers(40)) == 40
    assert computed(engine, numbers(40)) == 8, "all three blocks are needed, the one to be copied too"
    roomy = engine_of(num_blocks=4, max_num_seqs=1)
    assert [computed(roomy, numbers(40)) for _ in range(2)] == [40, 1]


def test_a_block_that_was_copied_is_as_recently_used_as_one_that_is_shared() -> None:
    engine = engine_of(num_blocks=4, max_num_seqs=1)
    for token in (1, 2, 1, 3, 4):
        computed(engine, [token] * 10)
    assert computed(engine, [1] * 10) == 1
    assert computed(engine, [2] * 10) == 10


def test_after_the_death_of_the_worker_nothing_is_copied() -> None:
    engine = engine_of()
    computed(engine, numbers(40))
    engine.kill_worker()
    assert computed(engine, numbers(40)) == 40


def test_after_a_reset_no_part_of_a_block_is_found_nor_what_rows_have_then() -> None:
    engine = engine_of()
    computed(engine, numbers(10))
    running = engine.submit([4] * 10, max_tokens=5)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    engine.drain()
    assert len(engine.clients[running].tokens[0]) == 5
    assert [computed(engine, prompt) for prompt in (numbers(10), [4] * 10)] == [10, 10]


def test_switched_off_no_part_of_a_block_is_found() -> None:
    engine = engine_of(prefix_cache=False)
    assert [computed(engine, numbers(10)) for _ in range(2)] == [10, 10]


def test_log_probabilities_of_a_prompt_are_computed_though_it_is_known() -> None:
    engine = engine_of()
    computed(engine, numbers(40))
    rid = engine.submit(numbers(40), SamplingParams(max_tokens=1, prompt_logprobs=0))
    engine.drain()
    engine.check_clients()
    assert cached(engine, rid) == 0


def test_a_prompt_of_a_model_with_recurrent_states_begins_at_a_checkpoint() -> None:
    engine = engine_of(num_states=16)
    prompt = numbers(100)
    assert [computed(engine, prompt) for _ in range(2)] == [100, 36]
    assert not any(plan.copies for plan in engine.plans)
