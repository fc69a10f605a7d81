"""Features together: whatever is turned on and whatever happens, each sequence gets what it gets alone."""

import random

import pytest
from msgspec.structs import replace

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.combinations.cases import (
    Ask,
    Case,
    Drafts,
    Event,
    Setting,
    draw,
    draw_asks,
    draw_events,
    draw_setting,
    smaller,
)
from stentor.tests.engine.combinations.playing import Models, play
from stentor.tests.engine.combinations.shrinking import shrink

KINDS = (
    *("llama", "gemma2", "gpt-oss", "olmo3", "qwen3-moe", "deepseek-v3", "deepseek-v3-dense", "gemma3n", "minicpm3"),
    *("qwen3.5", "qwen3-next-moe", "granite4-hybrid", "mamba2", "jamba", "kimi-linear", "lfm2", "deepseek-v4"),
    *("iquest-loop", "coded gptq", "coded compressed-fp8", "coded gpt-oss", "headed eagle", "headed qwen3.5"),
    *("seeing gemma3", "seeing qwen3_vl", "answering t5", "answering t5gemma2"),
)
"""Dense, with windows, sinks, experts, latents, recurrent states and loops; with coded weights, heads that draft,
pictures and encoders."""
ROUNDS = 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def _check(case: Case, models: Models) -> str:
    """Why the worker refuses to start so; "" where it ran and nothing differs."""
    report = play(case, models)
    if report.problems:
        small, told = shrink(case, models)
        pytest.fail(f"{told.problems[:3]}\n{small}")
    return report.refused


@pytest.mark.proof(each="seed")
@pytest.mark.parametrize("seed", range(60))
def test_random_combinations_give_each_sequence_what_it_gets_alone(seed: int, models: Models) -> None:
    rng = random.Random(seed)
    setting = draw_setting(rng, KINDS)
    for _ in range(ROUNDS):
        why = _check(Case(setting=setting, asks=draw_asks(rng, setting), events=draw_events(rng)), models)
        if why:
            assert why.startswith("SetupError: --"), f"{setting} is refused in words that name no option: {why}"
            return


@pytest.mark.parametrize("drafts", ["", "oracle"])
def test_a_crowd_with_all_that_a_dense_model_can_have_gets_what_each_gets_alone(drafts: Drafts, models: Models) -> None:
    rng = random.Random(4)
    worker = {"max_num_seqs": 3, "enable_lora": True, "max_loras": 1, "max_lora_rank": 4, "kv_offloading_size": 1 << 18}
    limits = {"max_num_batched_tokens": 24, "max_mixed_prefill_tokens": 7, "max_prefill_chunk": 16}
    setting = Setting(model="llama", worker=worker, drafts=drafts, spare=0.3, limits=limits, aging=0.01)
    asks = [replace(ask, at=number) for number, ask in enumerate(draw_asks(rng, setting, 8))]
    events = [
        Event(9, "worker_dies"),
        Event(14, "engine_dies"),
        Event(20, "recompute"),
        Event(25, "reset_prefix_cache"),
    ]
    assert _check(Case(setting=setting, asks=asks, events=events), models) == ""


def test_a_draft_model_whose_layers_are_called_computes_also_while_rows_leave(models: Models) -> None:
    setting = Setting(model="deepseek-v3-dense", worker={"threads": 1, "max_num_seqs": 3}, drafts="near", depth=8)
    assert _check(Case(setting=setting, asks=draw_asks(random.Random(6), setting, 3), events=[]), models) == ""


def test_prompts_of_a_looped_model_are_the_same_in_chunks_of_any_size(models: Models) -> None:
    setting = Setting(model="iquest-loop", limits={"max_prefill_chunk": 3}, prefix_cache=False)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    assert _check(Case(setting=setting, asks=[Ask(prompt=[*range(5, 40)], params=params, seeds=[1])]), models) == ""


def test_requests_of_a_smaller_set_up_ask_for_nothing_that_it_lacks() -> None:
    setting = Setting(model="qwen3-moe", worker={"enable_lora": True, "return_routed_experts": True})
    ask = Ask(prompt=[5], params=SamplingParams(max_tokens=1, routed_experts=0), seeds=[1], adapter=1)
    found = [each for each in smaller(Case(setting=setting, asks=[ask])) if each.setting != setting]
    told = {(*each.setting.worker, each.asks[0].adapter, each.asks[0].params.routed_experts) for each in found}
    assert {("enable_lora", 1, None), ("return_routed_experts", 0, 0)} <= told
    assert all(("enable_lora" in each) == (1 in each) for each in told)


@pytest.mark.proof
def test_a_difference_is_noticed_and_made_small(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the plain engine is asked for one that is drawn with another seed."""
    alone = Models.alone
    monkeypatch.setattr(Models, "alone", lambda self, setting, ask, seed: alone(self, setting, ask, seed + 1))
    drawn = SamplingParams(max_tokens=8, temperature=1.0, top_p=0.9)
    asks = [Ask(prompt=[5, 6, 7], params=replace(drawn, temperature=0.0), seeds=[1])]
    asks.append(Ask(prompt=[5, 6], params=drawn, seeds=[1, 2], at=3, salt="other"))
    small, report = shrink(Case(setting=Setting(model="llama"), asks=asks, events=[Event(2, "pause")]), models)
    assert report.problems
    assert not small.events
    (ask,) = small.asks
    assert ask == Ask(prompt=ask.prompt, params=SamplingParams(max_tokens=ask.params.max_tokens), seeds=ask.seeds)
    assert (len(ask.prompt), len(ask.seeds)) == (1, 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_case_that_is_made_smaller_again_and_again_comes_to_an_end(seed: int) -> None:
    rng = random.Random(seed)
    case = draw(seed, KINDS)
    for _ in range(2000):
        if not (found := smaller(case)):
            break
        case = rng.choice(found)
    assert not smaller(case)
    assert len(case.asks) == 1
