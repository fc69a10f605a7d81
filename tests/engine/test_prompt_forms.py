"""Codes on tiles: what a text's tokens multiply depends on the text alone, so that its draws do."""

import random
from functools import partial
from itertools import cycle
from pathlib import Path

import gguf
import pytest

from stentor.engine.worker.rows.rows import EXPANDED_FROM
from stentor.kernels import native
from stentor.kernels.native.processor import TileForm, force_tiles, tile_form
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.loading.gguf_families import write_family
from stentor.tests.engine.loading.tiny_gguf import tiny_model, write_gguf
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.kernels.helpers import COMPILES
from stentor.tests.kernels.tile_library import IS_X86, calls_to, emulated
from stentor.tests.parity.test_gguf_families import made

pytestmark = [
    pytest.mark.proof,
    COMPILES,
    pytest.mark.skipif(not IS_X86 or native.library() is None, reason="tiles are x86's, and compiled for them"),
]

FORM: TileForm = "hardware" if tile_form() == "hardware" else "emulated"
KIND = gguf.GGMLQuantizationType.Q8_0
POOL = 14
"""Blocks that are too few for all."""


@pytest.fixture(scope="module", params=["llama", "lfm2", "qwen2moe"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model whose pass is a single program, of one whose mixers are called on the way, and of one with experts,
    which expand codes for prompts that are longer by half."""
    file = tmp_path_factory.mktemp(request.param) / "m.gguf"
    if request.param == "llama":
        write_gguf(file, tiny_model("llama"), "llama", KIND)
    else:
        name, ffn = {"qwen2moe": ("qwen2-moe", "ffn_down_exps")}.get(request.param, (request.param, "ffn_down"))
        coded = ("attn", "ffn_gate", "ffn_up", ffn, "_proj")  # the last product of a shared expert reads 48 numbers
        write_family(file, made(name, file.parent), request.param, dict.fromkeys(coded, KIND))
    return file


def _engine(file: Path) -> LocalEngine:
    return LocalEngine(model_config(file, dtype="bfloat16", max_model_len=128))


Job = tuple[list[int], SamplingParams, int]


def _jobs(count: int) -> list[Job]:
    """Prompts shorter than those whose products expand codes, and longer."""
    rng = random.Random(3)
    jobs = []
    for number in range(count):
        length = rng.choice((1, 5, EXPANDED_FROM - 1, EXPANDED_FROM, EXPANDED_FROM + 3, 70))
        prompt = [rng.randrange(3, 60) for _ in range(length)]
        params = SamplingParams(max_tokens=rng.randrange(8, 24), temperature=0.7 * (number % 2), logprobs=1)
        jobs.append((prompt, params, number))
    return jobs


def _told(engine: LocalEngine, rid: int) -> tuple[list[int], list[object]]:
    outcome = engine.outcomes[rid, 0]
    return outcome.tokens, [*outcome.logprobs]


def _alone(engine: LocalEngine, jobs: list[Job]) -> list[tuple[list[int], list[object]]]:
    found = []
    for prompt, params, seed in jobs:
        engine.restart(engine.ready.num_blocks)
        rid = engine.submit(prompt, params, [seed])
        engine.run()
        found.append(_told(engine, rid))
    return found


@pytest.mark.parametrize("budget", [40, 256])
def test_streams_beside_each_other_draw_what_each_draws_alone(file: Path, budget: int) -> None:
    """In chunks of any size, in a pool too small, from a worker that dies: log-probabilities are the same bits."""
    jobs = _jobs(16)
    with calls_to(emulated()), force_tiles(FORM):
        engine = _engine(file)
        alone = _alone(engine, jobs)
        for dies in (False, True):
            engine.restart(POOL, prefix_cache=False, max_num_batched_tokens=budget)
            rids = [engine.submit(prompt, params, [seed]) for prompt, params, seed in jobs]
            engine.run(dies=partial(next, cycle([*[False] * 12, dies])))
            assert engine.deaths > 0 if dies else engine.scheduler.stats().preemptions > 0
            assert [_told(engine, rid) for rid in rids] == alone


def test_a_long_prompt_expands_its_codes_and_a_short_one_does_not(tmp_path: Path) -> None:
    jobs, file = _jobs(16), tmp_path / "m.gguf"
    write_gguf(file, tiny_model("llama"), "llama", KIND)
    with calls_to(emulated()), force_tiles("none"):
        of_codes = _alone(_engine(file), jobs)
    with calls_to(emulated()), force_tiles(FORM):
        found = _alone(_engine(file), jobs)
    for (prompt, _, _), mine, theirs in zip(jobs, found, of_codes, strict=True):
        assert (mine == theirs) == (len(prompt) < EXPANDED_FROM)
