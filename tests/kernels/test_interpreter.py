# mypy: allow-untyped-decorators
"""The interpreter that the kernel tests run in: quicker than Triton's own, with the same results."""

import os
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic

from stentor.kernels.launching.launch import launch
from stentor.kernels.tuning import Config
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.interpreter_types import keep_types
from stentor.tests.support.interpreter import shuffled, speed_up

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is switched off"),
]


@triton.jit
def combine(a, b):  # type: ignore[no-untyped-def]
    return a + b, a - b, a * b


@triton.jit
def calculate(a, b, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    total, difference, product = combine(tl.load(a + at), tl.load(b + at))
    tl.store(out + at, total)
    tl.store(out + BLOCK + at, difference)
    tl.store(out + 2 * BLOCK + at, product)


def run(a: list[int], b: list[int], dtype: torch.dtype) -> list[int]:
    x, y = (torch.tensor(values, dtype=dtype, device=DEVICE) for values in (a, b))
    out = torch.zeros(3 * len(a), dtype=dtype, device=DEVICE)
    launch(calculate, (1,), x, y, out, config=Config.of(BLOCK=len(a)))
    return [int(value) for value in out]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_arithmetic_up_to_the_limits_of_a_type_is_exact(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    assert run([high - 1, low + 1], [1, -1], dtype) == [high, low, high - 2, low + 2, high - 1, -low - 1]


def test_the_language_is_replaced_once_for_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every call, it would take two thirds of the time of the kernel tests."""
    from triton.runtime import interpreter

    run([1], [2], torch.int32)
    seen: list[Any] = []
    monkeypatch.setattr(interpreter, "_patch_builtin", lambda *args: seen.append(args))
    assert run([3], [4], torch.int32) == [7, -1, 12]
    assert seen == []


def test_a_type_is_made_once_for_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every operation, it would take a quarter of the time of the kernel tests."""
    run([1], [2], torch.int32)
    seen: list[Any] = []
    monkeypatch.setattr(tl.core, "validate_block_shape", seen.append)
    assert run([3], [4], torch.int32) == [7, -1, 12]
    assert seen == []


def test_operands_of_one_shape_are_not_compared_size_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every operation, it would take a tenth of the time of the kernel tests."""
    keep_types()
    numbers, floats = (tl.tensor(None, tl.block_type(each, [4, 2])) for each in (tl.int32, tl.float32))
    monkeypatch.setattr(tl.block_type, "get_block_shapes", lambda _: pytest.fail("compared"))
    left, right = TritonSemantic.broadcast_impl_value(None, numbers, floats)
    assert left is numbers
    assert right is floats


FLOATS = [tl.float8e4nv, tl.float8e5, tl.float16, tl.bfloat16, tl.float32]


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_are_converted_to_the_bits_that_triton_s_own_conversion_gives(source: Any) -> None:
    """Also zeros, subnormal numbers, infinity and NaN, and the largest before each of them."""
    from triton._C.libtriton import ir
    from triton.runtime import interpreter

    speed_up()
    bits = source.primitive_bitwidth
    every = np.arange(1 << min(bits, 16), dtype=f"uint{bits}")
    if bits == 32:
        near = np.array([-0x8001, -0x8000, -1, 0, 1, 0x7FFF, 0x8000]).astype(np.uint32)
        every = ((every[::16] << 16) + near[:, None]).ravel()
    normal = every[(every & 0x7F80_0000 > 0) | (every << 1 == 0)] if bits == 32 else every
    for target in [each for each in FLOATS if each.primitive_bitwidth != bits]:
        for rounding in (None, ir.ROUNDING_MODE.RTZ, ir.ROUNDING_MODE.RTNE):
            for numbers in (every, normal, every[:6].reshape(2, 3), every[:1].reshape(())):
                found = interpreter._convert_float(numbers, source, target, rounding)
                expected = interpreter._convert_float.__wrapped__(numbers, source, target, rounding)
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                assert np.array_equal(found, expected)


@triton.jit
def follow(x):  # type: ignore[no-untyped-def]
    """A race: each program reads what the one before it writes."""
    at = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(x + at + 1, tl.load(x + at) + 1)


@triton.jit
def count(x):  # type: ignore[no-untyped-def]
    at = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(2)
    tl.store(x + at, tl.load(x + at) + 1)


def followed(seed: int) -> list[int]:
    x = torch.zeros(13, dtype=torch.int32, device=DEVICE)
    with shuffled(seed):
        launch(follow, (4, 3), x, config=Config.of())
    return x.tolist()


def test_a_race_between_programs_shows_in_a_shuffled_order() -> None:
    assert followed(1) == followed(1)
    assert followed(1) != followed(2)
    in_turn = [*range(13)]
    assert in_turn not in (followed(1), followed(2))


def test_each_program_runs_once_in_a_shuffled_order() -> None:
    x = torch.zeros(24, dtype=torch.int32, device=DEVICE)
    with shuffled(3):
        launch(count, (2, 3, 4), x, config=Config.of())
        launch(count, (24,), x, config=Config.of())
    assert x.tolist() == [2] * 24
