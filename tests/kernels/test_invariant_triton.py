"""The forms of Triton kernels for ``--batch-invariant``: a row has the same bits alone, in any batch and any chunk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stentor.kernels import linear
from stentor.kernels.attention import triton, triton_invariant
from stentor.kernels.launching.launch import interpreted
from stentor.kernels.linear import choose
from stentor.kernels.linear.triton_fixed import OPERATION
from stentor.kernels.tuning import Config, overridden
from stentor.kernels.variants import force_variant
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal
from stentor.tests.kernels.paged_sequences import FP8, make_step
from stentor.tests.parity import tiny
from stentor.tests.parity.paged import BLOCK, PagedDecoder

pytestmark = pytest.mark.triton

TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 1.6e-2}
LENGTH, PART = 70, 32


@pytest.fixture(autouse=True)
def _row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies by numpy, whose sums depend on a row's place in the tile. Here each row is a product
    of its own, summed as any other, as instructions of a GPU take them."""
    if not interpreted():
        return
    from triton.runtime import interpreter

    matmul = np.matmul

    def product(left: Any, right: Any, dtype: Any) -> Any:
        left, right = np.ascontiguousarray(left, dtype), np.ascontiguousarray(right, dtype)
        return matmul(left[:, None], right)[:, 0]

    monkeypatch.setattr(interpreter.np, "matmul", product)


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_invariant, "PART_KEYS", PART)


@contextmanager
def shared_by(programs: int) -> Iterator[None]:
    """However many tiles there are, as many programs share the keys of each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(triton_invariant, "_sharing", lambda *_: programs)
        yield


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
def test_a_rows_product_does_not_depend_on_how_many_there_are(dtype: torch.dtype) -> None:
    x, weight, bias = (
        normal(*shape, seed=seed, dtype=dtype).to(DEVICE) for seed, shape in enumerate([(40, 72), (50, 72), (50,)])
    )
    whole = linear(x, weight, bias, invariant=True, variant="triton")
    assert_close(whole, (x.double() @ weight.double().T + bias.double()).to(dtype), TOLERANCE[dtype])
    for begin, end in ((0, 1), (39, 40), (3, 20), (17, 40)):
        assert_same_bits(linear(x[begin:end], weight, bias, invariant=True, variant="triton"), whole[begin:end])
    wide = torch.cat([x, x], 1)[:, :72]
    assert_same_bits(linear(wide, weight, bias, invariant=True, variant="triton"), whole)
    assert choose(x, weight, invariant=True, variant="triton") == "triton"


def test_tiles_of_other_sizes_give_the_product_too() -> None:
    x, weight = normal(5, 64, seed=1).to(DEVICE), normal(8, 64, seed=2).to(DEVICE)
    with overridden(OPERATION, Config.of(BLOCK_T=16, BLOCK_N=16, BLOCK_K=16)):
        assert_close(linear(x, weight, invariant=True, variant="triton"), x @ weight.T, 5e-6)


@pytest.mark.parametrize("programs", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"window": 30}, {"chunk": 30}, {"softcap": 3.0}, {"sinks": True}, {"slopes": True}]
)
def test_a_token_attends_alike_decoded_or_recomputed_in_any_chunk(options: dict[str, Any], programs: int) -> None:
    if "sinks" in options:
        options = {"sinks": torch.tensor([-9.0, 0.5, 3.0, 20.0], device=DEVICE)}
    if "slopes" in options:
        options = {"slopes": torch.tensor([0.5, 0.0, 2.0, 0.01], device=DEVICE)}
    with shared_by(1):
        whole = make_step([(LENGTH, LENGTH)]).run(invariant=True, **options)
    with shared_by(programs):
        for begin, end in ((0, 33), (33, 70), (69, 70)):
            chunk = make_step([(end, end - begin), (90, 3)]).run(invariant=True, **options)
            assert_same_bits(chunk[: end - begin], whole[begin:end])
        for end in (1, 32, 33, 64, 65, 70):
            decoded = make_step([(end, 1), (40, 1), (50, 20)], decode_rows=2).run(invariant=True, **options)
            assert_same_bits(decoded[:1], whole[end - 1 : end])


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("options", [{}, {"window": 13}, {"chunk": 13}, {"causal": False}, {"softcap": 2.0}])
def test_it_is_the_reference(options: dict[str, Any], dtype: torch.dtype, programs: int) -> None:
    sinks = torch.tensor([-9.0, 0.5, 3.0, 20.0], device=DEVICE)
    if options.get("causal", True):
        options = {**options, "slopes": torch.tensor([0.5, 0.0, 2.0, 0.01], device=DEVICE)}
    step = make_step([(70, 40), (5, 5), (33, 0), (90, 3)], dtype=dtype)
    if options.get("causal", True):
        numbers = torch.randn(*step.q.shape[:2], 21, generator=torch.Generator().manual_seed(5))
        options = {**options, "distances": (numbers if programs == 1 else numbers[0].contiguous()).to(DEVICE)}
    with shared_by(programs):
        found = step.run(invariant=True, sinks=sinks, **options)
    assert_close(found, step.run("reference", sinks=sinks, **options), TOLERANCE[dtype])


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "size"), [(2, 2, 64, 16), (20, 1, 80, 48), (7, 1, 5, 64)])
def test_it_is_the_reference_for_any_heads_and_blocks(heads: int, kv_heads: int, dim: int, size: int) -> None:
    step = make_step([(70, 1), (9, 1), (90, 33)], heads=heads, kv_heads=kv_heads, dim=dim, size=size, decode_rows=2)
    with shared_by(2):
        assert_close(step.run(invariant=True), step.run("reference"), 5e-6)


def test_float8_caches_are_the_references() -> None:
    step = make_step([(70, 40), (33, 1)], dtype=torch.float16, cache_dtype=FP8)
    for programs in (1, 2):
        with shared_by(programs):
            assert_close(step.run(invariant=True), step.run("reference"), 3e-3)


def test_padding_rows_are_zeros() -> None:
    step = make_step([(70, 1), (0, 1)], decode_rows=2)
    assert not step.run(invariant=True)[1].any()


def test_programs_share_keys_where_tiles_are_few_and_what_they_leave_fits() -> None:
    assert triton_invariant._sharing(8, 8, 1 << 20, 132) == 8
    assert triton_invariant._sharing(8, 256, 1 << 20, 132) == 33
    assert triton_invariant._sharing(8, 256, 65 << 20, 132) == 1
    assert triton_invariant._sharing(67, 256, 1 << 20, 132) == 1


def test_it_is_what_invariant_attention_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[bool] = []
    monkeypatch.setattr(triton, "paged_invariant", lambda *_, **__: ran.append(True))
    step = make_step([(5, 1)], decode_rows=1)
    step.run()
    assert not ran
    step.run(invariant=True)
    assert ran


@pytest.mark.skipif(not interpreted(), reason="on a GPU tests/gpu/test_invariance.py shows it")
@pytest.mark.proof(each="architecture")
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2", "gpt-oss"])
def test_a_models_logits_are_the_same_in_any_batch_chunk_and_behind_a_cached_prefix(
    architecture: str, tmp_path: Path
) -> None:
    tiny.make(architecture, tmp_path)
    prompt = [3 + 7 * place % 100 for place in range(40)]
    with force_variant("triton"):

        def fresh() -> PagedDecoder:
            return PagedDecoder(tmp_path, invariant=True, packed=False, dtype=torch.float32)

        alone = fresh()
        alone.add(0, prompt)
        (expected,) = alone.run((0, 0, len(prompt)))
        ours = fresh()
        ours.add(1, prompt[5:])
        blocks = ours.add(2, prompt)
        ours.run((2, 0, BLOCK))
        ours.add(0, prompt, shared_blocks=blocks[:1])
        found = [ours.run((1, 0, 9), (0, BLOCK, 20))[1]]
        for place in range(BLOCK + 20, len(prompt)):
            found.append(ours.run((0, place, 1), (1, 9 + place - BLOCK - 20, 1))[0])
    assert_same_bits(torch.cat(found), expected[BLOCK:])
