"""A worker of an encoder-decoder of text, from a checkpoint to outputs, beside transformers and beside itself alone."""

import random
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up_on
from stentor.protocols.ipc.cache_groups import FULL, CacheGroup
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.server.options.model_facts import describe_model
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.media import Audio
from stentor.tests.parity.translators import KINDS, VOCAB, encoded, logits_of

LONGEST = 64


CACHED = {"t5": 64, "longt5": 64, "bart": 48, "t5gemma": 32, "t5gemma2": 32}
"""Numbers of a key of all heads, by kind."""


@pytest.fixture(scope="module", params=CACHED)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model = KINDS[request.param]()
    folder = tmp_path_factory.mktemp("seq2seq")
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def engine(pair: tuple[Any, Path]) -> LocalEngine:
    return LocalEngine(model_config(pair[1], max_num_seqs=6, max_num_batched_tokens=0))


def text(*tokens: int) -> Audio:
    """What a request is about."""
    data = encoded(tokens)
    return Audio(data, blake2b(data, digest_size=16).digest())


def random_request(seed: int) -> tuple[list[int], SamplingParams, list[int], Audio]:
    """With one to three sequences; several requests have one text."""
    rng, shared = random.Random(seed), random.Random(seed % 4)
    prompt = [2, *(rng.randrange(4, VOCAB) for _ in range(rng.choice([0, 1, 30])))]
    params = SamplingParams(
        max_tokens=rng.choice([4, 12, 30]), temperature=rng.choice([0.0, 0.7]), logprobs=rng.choice([None, 2])
    )
    words = [shared.randrange(4, VOCAB) for _ in range(shared.choice([1, 7, LONGEST]))]
    return prompt, params, [seed + each for each in range(rng.choice([1, 1, 3]))], text(*words)


def results_of(engine: LocalEngine, rid: int, sequences: int) -> list[object]:
    outcomes = [engine.outcomes[rid, index] for index in range(sequences)]
    assert all(each.finished is not None and each.finished.reason in ("length", "stop") for each in outcomes)
    return [each.tokens for each in outcomes]


def test_greedy_tokens_are_those_of_transformers(pair: tuple[Any, Path], engine: LocalEngine) -> None:
    engine.restart(engine.ready.num_blocks)
    words = [5, 90, 17, 150, 33, 3]
    found = engine.generate([2, 9], SamplingParams(max_tokens=30, temperature=0.0), audio=text(*words))
    assert len(found) == 30
    assert logits_of(pair[0], words, [2, 9, *found])[1:-1].argmax(1).tolist() == found


def test_many_texts_at_once_give_what_each_gives_alone(engine: LocalEngine) -> None:
    requests = [random_request(seed) for seed in range(12)]
    alone = []
    for prompt, params, seeds, words in requests:
        engine.restart(engine.ready.num_blocks)
        rid = engine.submit(prompt, params, seeds, audio=words)
        engine.run()
        alone.append(results_of(engine, rid, len(seeds)))
    engine.restart(engine.ready.num_blocks)
    rids = [engine.submit(*each[:3], audio=each[3]) for each in requests]
    engine.run(check=True)
    assert [results_of(engine, rid, len(each[2])) for rid, each in zip(rids, requests, strict=True)] == alone


def test_neither_deaths_nor_preemptions_nor_small_steps_change_an_output(engine: LocalEngine) -> None:
    requests = [random_request(100 + seed) for seed in range(7)]
    long = SamplingParams(max_tokens=50, temperature=0.7)

    def outputs(blocks: int, deaths: list[int], tokens: int = 0) -> list[object]:
        engine.restart(blocks, max_num_batched_tokens=tokens)
        before = engine.steps
        rids = [engine.submit(*each[:3], audio=each[3]) for each in requests]
        engine.run(check=True, dies=lambda: engine.steps - before in deaths and bool(deaths.pop(0)))
        return [results_of(engine, rid, len(each[2])) for rid, each in zip(rids, requests, strict=True)]

    expected = outputs(engine.ready.num_blocks, [])
    assert outputs(engine.ready.num_blocks, [3, 9, 20]) == expected
    assert outputs(engine.ready.num_blocks, [], tokens=16) == expected
    requests = [([2, 7], long, [seed], text(9, 30 + seed % 3, 77)) for seed in range(8)]
    expected = outputs(engine.ready.num_blocks, [])
    assert outputs(9, []) == expected
    assert engine.scheduler.stats().preemptions > 0, "the pool was not too small"


def test_a_prefix_is_found_for_the_same_text_alone(engine: LocalEngine) -> None:
    engine.restart(engine.ready.num_blocks)
    prompt, params = [2, *range(10, 50)], SamplingParams(max_tokens=2, temperature=0.0)
    cached = []
    for words in (text(8, 9), text(8, 9), text(8, 10)):
        rid = engine.submit(prompt, params, audio=words)
        engine.run()
        cached.append(engine.prompts[rid].cached_tokens)
    assert cached == [0, 40, 0]


def test_a_request_without_its_text_or_with_too_long_a_one_is_refused(engine: LocalEngine) -> None:
    engine.restart(engine.ready.num_blocks)
    params = SamplingParams(max_tokens=2)
    for words, why in (
        (None, "an encoder-decoder is served: the request needs a text for the encoder"),
        (text(*range(65)), "the encoder's text has 260 bytes; expected are 1 to 64 tokens of 4"),
        (Audio(b"abc", bytes(16)), "the encoder's text has 3 bytes; expected are 1 to 64 tokens of 4"),
    ):
        rid = engine.submit([2], params, audio=words)
        finished = engine.outcomes[rid, 0].finished
        assert finished is not None
        assert finished.message == why


def test_memory_and_limits_are_told(pair: tuple[Any, Path], engine: LocalEngine) -> None:
    rows = 6
    assert engine.ready.max_model_len == LONGEST
    assert engine.ready.groups == (FULL, CacheGroup("cross", LONGEST, rows * LONGEST, inputs="tokens"))
    encoded_line = next(line for line in engine.ready.memory if line.what == "encoded texts")
    layers, cached = 3, CACHED[pair[0].config.model_type]
    assert encoded_line.bytes == rows * 2 * layers * cached * LONGEST * 4
    assert "64 positions of the encoder" in describe_model(pair[1], [])


def test_options_that_it_cannot_follow_are_refused(pair: tuple[Any, Path]) -> None:
    for changes, why in (
        ({"kv_cache_dtype": "int8"}, "encoder-decoders have no scales for it"),
        ({"enable_lora": True}, "--enable-lora"),
        ({"return_routed_experts": True}, "encoder-decoders return none"),
    ):
        with pytest.raises(SetupError, match=why):
            set_up_on(model_config(pair[1], **changes), lambda *_: None)
    name = type(pair[0]).__name__
    longer = model_config(pair[1], max_model_len=100, max_num_batched_tokens=0)
    if "T5For" not in name:  # their numbers by distance have no bound
        with pytest.raises(SetupError, match=f"--max-model-len 100: {name} was made for at most 64"):
            set_up_on(longer, lambda *_: None)
    else:
        assert set_up_on(longer, lambda *_: None).ready.max_model_len == 100
