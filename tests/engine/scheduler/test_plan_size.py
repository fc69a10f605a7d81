"""What a plan carries: what sequences share once, and never more at a time than a step may bring."""

from stentor.engine.worker.rows.rows import with_forks
from stentor.protocols.ipc.actors import Resumed, Submit
from stentor.protocols.ipc.codec import encoder
from stentor.protocols.ipc.inputs import StreamShape, total_bytes
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import StepPlan
from stentor.tests.engine.fake_engine import Engine
from stentor.tests.engine.media import Heard
from stentor.tests.engine.scripted_grammar import ScriptedGrammar

ALLOWED = tuple(range(500))


def entering(engine: Engine) -> list[StepPlan]:
    """Every step that rows enter in from now on, until nothing is left to do."""
    before = len(engine.sent)
    engine.drain()
    return [plan for plan in engine.sent[before:] if plan.new]


def test_the_prompt_and_the_parameters_of_a_request_travel_once_however_many_sequences_enter() -> None:
    sizes = []
    for sequences in (2, 8):
        engine = Engine(num_blocks=256, max_num_seqs=8, max_num_batched_tokens=64)
        params = SamplingParams(max_tokens=2, allowed_token_ids=ALLOWED)
        engine.submit([1] * 50, params, seeds=list(range(sequences)))
        leader, forks = entering(engine)
        engine.check_clients()
        assert (len(leader.new), len(leader.forks)) == (1, 0)
        assert (len(forks.new), len(forks.forks)) == (1, sequences - 2)
        whole = with_forks(forks).new
        assert {each.params for each in whole} == {params}
        assert [each.tokens for each in whole] == [[1] * 50] * (sequences - 1)
        sizes.append(len(encoder.encode(forks)))
    assert sizes[1] - sizes[0] < 6 * 100


def test_sequences_that_enter_again_bring_only_what_they_have_drawn() -> None:
    engine = Engine(num_blocks=256, max_num_seqs=8, max_num_batched_tokens=256)
    engine.submit([1] * 40, max_tokens=9, seeds=[1, 2, 3])
    for _ in range(5):
        engine.step()
    engine.kill_worker()
    first = entering(engine)[0]
    assert [each.origin for each in first.forks] == [0, 0]
    assert all(0 < len(each.outputs) < 9 for each in first.forks)
    engine.check_clients()


def test_rows_that_bring_more_than_a_step_carries_enter_in_several() -> None:
    engine = Engine(num_blocks=256, max_num_seqs=8, max_num_batched_tokens=256, max_plan_bytes=1200)
    for _ in range(8):
        engine.submit([1] * 40, max_tokens=2)
    plans = entering(engine)
    engine.check_clients()
    assert len(plans) > 4
    assert all(len(encoder.encode(plan.new)) <= 1200 for plan in plans)
    # the same with room for all
    engine = Engine(num_blocks=256, max_num_seqs=8, max_num_batched_tokens=256)
    for _ in range(8):
        engine.submit([1] * 10, max_tokens=2)
    assert len(entering(engine)) == 1


def test_one_row_that_alone_is_larger_than_that_enters_alone() -> None:
    engine = Engine(num_blocks=256, max_num_seqs=8, max_num_batched_tokens=256, max_plan_bytes=300)
    for length in (3, 50, 3):
        engine.submit([1] * length, max_tokens=2)
    assert [[row.prompt_len for row in plan.new] for plan in entering(engine)] == [[3], [50], [3]]
    engine.check_clients()


def test_banned_sequences_stay_with_the_engine_that_keeps_to_them() -> None:
    engine = Engine()
    params = SamplingParams(max_tokens=3, banned_sequences=tuple((index, index + 1) for index in range(1000)))
    engine.submit([1] * 9, params, seeds=[1, 2], grammar=ScriptedGrammar(3))
    for plan in entering(engine):
        assert len(encoder.encode(plan)) < 400
        assert all(row.params.banned_sequences == () for row in plan.new)


def test_a_request_of_which_a_row_fits_into_no_frame_is_refused_and_nobody_else() -> None:
    engine = Engine(max_frame=700)
    beside = engine.submit([2] * 9, max_tokens=8)
    large = engine.submit([1] * 9, SamplingParams(max_tokens=3, allowed_token_ids=ALLOWED), seeds=[1, 2])
    engine.drain()
    ends = engine.clients[large].finished
    assert [(ends[index].reason, "holds 700" in (ends[index].message or "")) for index in (0, 1)] == [
        ("error", True)
    ] * 2
    assert engine.clients[beside].finished[0].reason == "length"
    # nor where it comes from an engine that was lost, with a sequence that has ended
    resumed = Resumed([[], []], [0], prompt_done=False)
    again = Submit(99, [1] * 9, SamplingParams(3, allowed_token_ids=ALLOWED), [1, 2], 0, "", 0.0, resumed)
    refused = engine.scheduler.submit(again)
    assert refused is not None
    assert [end.index for end in refused.finished] == [1]


def test_a_row_hears_no_more_in_a_step_than_its_positions_need() -> None:
    shape = StreamShape(first=20, step=10)
    engine = Engine(num_blocks=256, max_num_batched_tokens=16, max_prefill_chunk=4, max_model_len=256, stream=shape)
    engine.submit([1] * 40, max_tokens=4, streamed=Heard(bytes(2 * 600), ended=True))
    engine.drain()
    engine.check_clients()
    assert max(total_bytes(given.pieces) for plan in engine.sent for given in plan.inputs) <= 2 * (20 + 10 * 5)
