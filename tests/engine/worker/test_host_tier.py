"""Prompts that others have driven out of the KV cache: copied back from host memory they give the very same numbers."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from stentor.engine.worker.caches import host_memory
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.cache_groups import HostSizes
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import hybrids, tiny

pytestmark = pytest.mark.usefixtures("one_thread")

ASKED = SamplingParams(max_tokens=5, temperature=0.0, logprobs=4)
LENGTH = 60


def make(architecture: str, folder: Path) -> None:
    hybrid = hybrids.configs(tiny.SHAPE).get(architecture)
    if hybrid is None:
        tiny.make(architecture, folder)
    else:
        tiny.make_of(hybrid(), architecture, folder)


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


def answer(engine: LocalEngine, asked: list[int]) -> tuple[list[int], list[TokenLogprobs], int]:
    rid = engine.submit(asked, ASKED)
    engine.run(check=True)
    found = engine.outcomes[rid, 0]
    return found.tokens, found.logprobs, engine.prompts[rid].cached_tokens


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {}),
        ("llama", {"kv_cache_dtype": "int8"}),
        ("llama", {"kv_cache_dtype": "fp8"}),
        ("olmo3", {}),
        ("gpt-oss", {}),
        ("deepseek-v3-dense", {}),
    ],
)
def test_a_prompt_that_was_driven_out_gives_the_same_bits_as_if_it_had_stayed(
    architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    tiny.make(architecture, tmp_path)
    invariant = {} if changes else {"batch_invariant": True}
    engine = LocalEngine(
        model_config(
            tmp_path, max_num_seqs=4, kv_cache_memory=8 << 20, kv_offloading_size=8 << 20, **invariant, **changes
        )
    )
    stayed = [answer(engine, prompt(0)) for _ in range(2)]
    groups = sum(group.is_paged for group in engine.ready.groups)
    engine.restart(6 * groups)
    first = [answer(engine, prompt(seed)) for seed in (0, 1, 2)]
    assert [cached for *_, cached in first] == [0, 0, 0]
    assert first[0] == stayed[0]
    assert answer(engine, prompt(0)) == stayed[1]
    assert stayed[1][2] == LENGTH - 1
    stats = engine.scheduler.stats()
    assert stats.prefix_hits + stats.host_hits == LENGTH - 1
    assert stats.host_hits > LENGTH // 2


@pytest.mark.parametrize("speculates", [False, True])
@pytest.mark.parametrize("architecture", ["granite4-hybrid", "mamba2"])
def test_a_recurrent_state_that_was_driven_out_comes_back_as_it_was(
    architecture: str, speculates: bool, tmp_path: Path
) -> None:
    make(architecture, tmp_path)
    speculative = SpeculativeConfig(method="ngram", num_speculative_tokens=2) if speculates else None
    config = model_config(tmp_path, max_num_seqs=2, kv_cache_memory=8 << 20, batch_invariant=True)
    config = msgspec.structs.replace(config, kv_offloading_size=8 << 20, speculative=speculative)
    engine = LocalEngine(config)
    stayed = [answer(engine, prompt(0, 72)) for _ in range(2)]
    assert stayed[1][2] == 64
    few = [msgspec.structs.replace(each, capacity=min(each.capacity, 5)) for each in engine.ready.groups]
    engine.ready = msgspec.structs.replace(engine.ready, groups=tuple(few))
    engine.restart(engine.ready.num_blocks)
    assert answer(engine, prompt(0, 72)) == stayed[0]
    for seed in range(1, 6):
        answer(engine, prompt(seed, 66))
    assert answer(engine, prompt(0, 72)) == stayed[1]
    stats = engine.scheduler.stats()
    assert stats.host_hits == 64
    assert stats.host_loaded_bytes >= engine.ready.host.state_bytes


def test_the_operator_is_told_how_many_blocks_the_tier_holds_and_the_engine_their_bytes(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    ready = set_up(model_config(tmp_path, kv_offloading_size=1 << 20), lambda *_: None).ready
    lines = {line.what: line for line in ready.memory}
    cache, tier = lines["KV cache"], lines["KV offload"]
    assert ready.host == HostSizes((1 << 20) // (cache.bytes // ready.num_blocks), cache.bytes // ready.num_blocks)
    assert tier.bytes == ready.host.blocks * ready.host.block_bytes
    assert tier.note == f"{ready.host.blocks} blocks of 16 tokens, for prefixes, in host memory; taken as it fills"
    without = set_up(model_config(tmp_path), lambda *_: None).ready
    assert without.host == HostSizes()
    assert "KV offload" not in {line.what for line in without.memory}


def test_host_memory_that_is_not_there_is_told_of() -> None:
    with pytest.raises(SetupError, match=r"--kv-offloading-size: 1048576.0 TiB of host memory cannot be had: no room"):
        host_memory(1 << 40, 1 << 20, torch.device("cpu"))


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (4, r"4 B are too little for blocks of .*iB; a number alone is bytes, 4GiB is a size"),
        (1 << 60, r"1048576.0 TiB do not fit, this host has .* left for it: lower it"),
    ],
)
def test_a_tier_that_cannot_be_is_refused(size: int, why: str, tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    with pytest.raises(SetupError, match=f"--kv-offloading-size: {why}"):
        set_up(model_config(tmp_path, kv_offloading_size=size), lambda *_: None)
