"""Attention of a prompt that begins with its step by torch's SDPA: cuDNN's on a GPU, plain sums on a CPU."""

from typing import Any

import pytest
import torch

from stentor.kernels.attention import triton as dispatch
from stentor.kernels.attention.prefill_tunables import BLOCK_SIZES, sequence, tunables
from stentor.kernels.attention.whole_prompt import (
    CUDNN,
    HELD_BACK,
    LIBRARY,
    OPERATION,
    OURS,
    attend_whole_prompt,
    choose_whole_prompt,
)
from stentor.kernels.forced import forcing
from stentor.kernels.launching.repeated import LaunchCache
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import assert_close, assert_same_bits
from stentor.tests.kernels.paged_sequences import FP8, Step, make_step
from stentor.tests.kernels.test_attention_prefill import TOLERANCE
from stentor.tests.kernels.test_moe_grouped import on_a_gpu

pytestmark = pytest.mark.triton

CUDA, BF16, FP16, FP32 = torch.device("cuda"), torch.bfloat16, torch.float16, torch.float32
PROMPT = 90


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The variants that ran, where the table prefers the library, and prompts of 64 tokens are long enough."""
    found: list[str] = []
    for name in ("attend_whole_prompt", "prepare_prefill"):
        run = getattr(dispatch, name)

        def noted(*args: Any, name: str = name, run: Any = run, **given: Any) -> Any:
            found.append(name)
            return run(*args, **given)

        monkeypatch.setattr(dispatch, name, noted)
    monkeypatch.setattr("stentor.kernels.attention.whole_prompt.LEAST_TOKENS", 64)
    monkeypatch.setattr("stentor.kernels.attention._LAUNCHES", LaunchCache())
    return found


def run(step: Step, **options: Any) -> torch.Tensor:
    with overridden(OPERATION, LIBRARY):
        return step.run(**options)


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "dim", "size", "transposed"),
    [
        (PROMPT, 4, 2, 64, 16, False),
        (PROMPT, 8, 1, 128, 64, True),
        (256, 4, 4, 32, 128, False),
        (257, 2, 1, 80, 48, True),
    ],
)
def test_a_prompt_is_the_references(
    ran: list[str],
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    kv_heads: int,
    dim: int,
    size: int,
    transposed: bool,
) -> None:
    step = make_step(
        [(tokens, tokens)], heads=heads, kv_heads=kv_heads, dim=dim, size=size, dtype=dtype, transposed=transposed
    )
    assert_close(run(step), step.run("reference"), TOLERANCE[dtype])
    assert ran == ["attend_whole_prompt"]


def test_decode_rows_before_a_prompt_run_on_our_kernel(ran: list[str]) -> None:
    step = make_step([(33, 1), (64, 1), (PROMPT, PROMPT)], dtype=FP16, decode_rows=2)
    found = run(step)
    assert_close(found, step.run("reference"), TOLERANCE[FP16])
    assert_same_bits(found[:2], step.run()[:2])
    assert ran == ["attend_whole_prompt", "prepare_prefill"]


def test_the_scale_of_scores_is_that_of_the_model(ran: list[str]) -> None:
    step = make_step([(PROMPT, PROMPT)], dtype=FP16)
    assert_close(run(step, scale=0.03), step.run("reference", scale=0.03), TOLERANCE[FP16])
    assert ran == ["attend_whole_prompt"]


@pytest.mark.parametrize(
    ("sequences", "decode_rows"),
    [
        pytest.param([(PROMPT, PROMPT - 1)], 0, id="after a prefix"),
        pytest.param([(PROMPT, PROMPT), (70, 70)], 0, id="two prompts"),
        pytest.param([(PROMPT, PROMPT), (0, 0)], 0, id="with the row of nobody of a graph"),
        pytest.param([(100, 1), (PROMPT, PROMPT)], 1, id="beside a longer context"),
        pytest.param([(63, 63)], 0, id="few tokens"),
    ],
)
def test_what_may_not_begin_with_its_step_runs_on_our_kernel(
    ran: list[str], sequences: list[tuple[int, int]], decode_rows: int
) -> None:
    step = make_step(sequences, dtype=FP16, decode_rows=decode_rows)
    assert_close(run(step), step.run("reference"), TOLERANCE[FP16])
    assert ran == ["prepare_prefill"]


@pytest.mark.parametrize(
    "options",
    [{"window": 9}, {"chunk": 32}, {"softcap": 5.0}, {"causal": False}, {"sinks": torch.zeros(4, device=DEVICE)}],
    ids=str,
)
def test_what_it_does_not_know_runs_on_our_kernel(ran: list[str], options: dict[str, Any]) -> None:
    step = make_step([(PROMPT, PROMPT)], dtype=FP16)
    assert_close(run(step, **options), step.run("reference", **options), TOLERANCE[FP16])
    assert ran == ["prepare_prefill"]


def test_no_number_of_the_device_is_waited_for() -> None:
    """On ``meta`` there is none to be had."""
    args = sequence(4, 8192, 64, BF16, torch.device("meta"))
    attend_whole_prompt(args, skipped=0, tokens=8192)
    assert args.out.shape == (8192, 32, 128)


def test_an_untuned_gpu_runs_our_kernel(ran: list[str]) -> None:
    step = make_step([(PROMPT, PROMPT)], dtype=FP16)
    step.run()
    with overridden(OPERATION, OURS):
        step.run()
    assert ran == ["prepare_prefill"] * 2


def test_a_dry_run_compiles_ours_whatever_the_table_says(ran: list[str]) -> None:
    step = make_step([(PROMPT, PROMPT)], dtype=FP16)
    with forcing(launch=lambda *_: None):
        run(step)
    assert ran == ["prepare_prefill"]


# ---- who is chosen, and why not


def chosen(**changes: Any) -> Any:
    given = {"device": CUDA, "dtype": BF16, "kv_dtype": BF16, "dim": 128, "group": 4, "size": 64, **changes}
    return choose_whole_prompt(**given)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"window": 4096}, "it does not take windows"),
        ({"window": -8192}, "it does not take windows"),
        ({"softcap": 30.0}, "it does not take soft caps"),
        ({"sinks": True}, "it does not take sinks"),
        ({"slopes": True}, "it does not take biases by distance"),
        ({"causal": False}, "it does not take keys after a query"),
        ({"invariant": True}, "it does not take batch invariance"),
        ({"kv_dtype": FP8}, "it does not take caches of 8 bits"),
        ({"dtype": FP32, "kv_dtype": FP32}, "it takes bfloat16, float16, not float32"),
        ({"dim": 100}, "it takes sizes that are multiples of 8, not 100"),
    ],
)
def test_a_refusal_has_a_reason(changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, 90)
    with overridden(OPERATION, LIBRARY):
        assert chosen().provider is CUDNN
        assert chosen(**changes).refusals == ((CUDNN, reason),)


def test_it_is_held_back_until_the_tuner_has_found_it_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, 90)
    assert chosen().describe("whole prompts") == (
        "whole prompts run on this server's kernels (Triton); cuDNN's attention does not run: " + HELD_BACK
    )
    on_a_gpu(monkeypatch, 80)
    with overridden(OPERATION, LIBRARY):
        assert chosen().refusals == ((CUDNN, "it takes compute capability 9.0 and 10.0, not 8.0"),)


def test_the_tuner_is_offered_it_beside_ours_under_the_keys_that_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [tunable for tunable in tunables() if tunable.operation == OPERATION]
    assert all(tunable.candidates == [LIBRARY] for tunable in offered)
    asked = []

    def pick(operation: str, key: str, default: Config) -> Config:
        asked.append((operation, key))
        return default

    on_a_gpu(monkeypatch, 90)
    monkeypatch.setattr("stentor.kernels.attention.whole_prompt.pick", pick)
    for group in (4, 8):
        for size in BLOCK_SIZES:
            chosen(group=group, size=size)
    assert asked == [(OPERATION, tunable.key) for tunable in offered]
