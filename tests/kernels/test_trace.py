"""What is recorded of a forward: the instructions that it left, and what it may not ask for."""

from typing import Any

import pytest
import torch
from torch import Tensor

from stentor.kernels.forward import Forward, Program, Step, Traced, TracedTokens, choose
from stentor.kernels.linear_packed import PackedWeight
from stentor.kernels.linear_packed.reference import dequantize
from stentor.kernels.norm import layer_norm, rms_norm
from stentor.tests.kernels.helpers import normal
from stentor.tests.kernels.packed_weights import packed_weight

HIDDEN, INNER = 32, 64


def weight(outputs: int, inputs: int, seed: int) -> PackedWeight:
    return packed_weight("f32", outputs, inputs, seed=seed)


def ops(program: Program) -> list[str]:
    return [instruction.op for instruction in program.instructions]


def given(program: Program) -> Traced:
    return Traced.written(program, program.buffer(HIDDEN))


def test_a_norm_waits_for_the_product_that_takes_it() -> None:
    program = Program()
    x = given(program).normed(torch.ones(HIDDEN), 1e-5)
    assert ops(program) == []
    x.linear([(weight(HIDDEN, HIDDEN, 1), 0, None)])
    assert ops(program) == ["norm_and_quantize", "linear"]
    x.linear([(weight(HIDDEN, HIDDEN, 2), 0, None)])
    assert ops(program) == ["norm_and_quantize", "linear", "linear"], "its input is there already"


def test_what_was_prepared_of_columns_is_prepared_again_once_they_are_added_to() -> None:
    program = Program()
    x, other = given(program), given(program)
    x.linear([(weight(HIDDEN, HIDDEN, 1), 0, None)])
    x.add_(other)
    x.linear([(weight(HIDDEN, HIDDEN, 2), 0, None)])
    assert ops(program) == ["norm_and_quantize", "linear", "norm_and_quantize", "linear"]
    assert program.instructions[2].add == other.buffer


def test_a_layer_norm_waits_for_the_product_that_takes_it_or_is_done_in_place() -> None:
    program = Program()
    bias = torch.full([HIDDEN], 0.5)
    x = given(program).layer_normed(torch.ones(HIDDEN), bias, 1e-5)
    assert ops(program) == []
    out = x.linear([(weight(HIDDEN, HIDDEN, 1), 0, None)]).layer_normed(torch.ones(HIDDEN), None, 1e-5)
    given(program).add_(out)
    assert ops(program) == ["norm_and_quantize", "linear", "norm", "add"]
    found = [(each.centred, each.bias is not None) for each in program.instructions]
    assert found == [(True, True), (False, False), (True, False), (False, False)]


def test_an_activation_without_a_gate_keeps_its_width() -> None:
    program = Program()
    up = given(program).linear([(weight(INNER, HIDDEN, 1), 0, None)]).activated("relu2")
    assert up.width == INNER
    up.linear([(weight(HIDDEN, INNER, 2), 0, None)])
    assert ops(program) == ["norm_and_quantize", "linear", "activate", "linear"]
    activate = program.instructions[2]
    assert (activate.activation, activate.gated, activate.width) == ("relu2", False, INNER)


def test_an_addition_joins_the_norm_that_follows() -> None:
    program = Program()
    residual = given(program)
    delta = residual.linear([(weight(HIDDEN, HIDDEN, 1), 0, None)]) * 0.5
    residual.add_(delta).normed(torch.ones(HIDDEN), 1e-5).linear([(weight(HIDDEN, HIDDEN, 2), 0, None)])
    assert ops(program) == ["norm_and_quantize", "linear", "norm_and_quantize", "linear"]
    assert (program.instructions[2].scale, program.instructions[2].norm is not None) == (0.5, True)


def test_columns_are_normed_where_they_lie() -> None:
    program = Program()
    left, right = given(program).split_with_sizes([HIDDEN // 2, HIDDEN // 2])
    joined = left.normed(torch.ones(HIDDEN // 2), 1e-5).beside(right.normed(torch.ones(HIDDEN // 2), 1e-5))
    assert [(each.op, each.column) for each in program.instructions] == [("norm", 0), ("norm", HIDDEN // 2)]
    assert joined.width == HIDDEN
    other, again = joined.split_with_sizes([8, HIDDEN - 8])
    with pytest.raises(ValueError, match="side by side"):
        again.beside(other)


def test_what_has_been_written_over_is_refused() -> None:
    program = Program()
    residual = given(program)
    before = residual.normed(torch.ones(HIDDEN), 1e-5)
    residual.add_(before.linear([(weight(HIDDEN, HIDDEN, 1), 0, None)]))
    before.linear([(weight(HIDDEN, HIDDEN, 2), 0, None)])  # as a product's input it is still there
    residual.linear([(weight(HIDDEN, HIDDEN, 3), 0, None)])
    with pytest.raises(ValueError, match="written again"):
        before.linear([(weight(HIDDEN, HIDDEN, 2), 0, None)])


def test_a_factor_or_an_activation_that_nothing_takes_is_refused() -> None:
    program = Program()
    x = given(program)
    with pytest.raises(ValueError, match="a factor is taken by a product"):
        (x * 2.0).linear([(weight(HIDDEN, HIDDEN, 1), 0, None)])
    with pytest.raises(ValueError, match="no instruction"):
        x.gated("silu").split_with_sizes([8, 8])


def test_places_are_used_again() -> None:
    """Ten layers need as many as one: the stream, what a part adds to it, and what stands between two products."""
    program = Program()
    residual = TracedTokens(program).embed(weight(50, HIDDEN, 1), 1.0)
    for layer in range(10):
        inner = residual.normed(torch.ones(HIDDEN), 1e-5).linear([(weight(INNER, HIDDEN, 2 + layer), 0, None)])
        residual.add_(inner.linear([(weight(HIDDEN, INNER, 50 + layer), 0, None)]))
    assert len(program.widths) == 21
    numbers = program.compact([residual.buffer])
    assert sorted(program.widths) == [HIDDEN, HIDDEN, INNER]
    assert numbers[residual.buffer] >= 0


@pytest.mark.parametrize("variant", ["reference", "native"])
def test_what_has_no_instruction_is_called_between_native_stretches(variant: Any) -> None:
    if variant == "native" and choose() != "native":
        pytest.skip("no native library")
    program = Program()
    x = given(program)
    first, second = weight(INNER, HIDDEN, 1), weight(HIDDEN, INNER, 2)
    seen: list[object] = []

    def squared(rows: Tensor, besides: object) -> Tensor:
        seen.append(besides)
        return rows.relu().square()

    inner = x.linear([(first, 0, None)]).call("a squared relu", squared, INNER)
    out = inner.linear([(second, 0, None)])
    assert program.calls == ["a squared relu"]
    numbers = program.compact([x.buffer, out.buffer])
    forward = Forward(program, variant=variant)
    values = normal(5, HIDDEN, seed=3)
    forward.buffer(numbers[x.buffer], 5).copy_(values)
    forward.run(5, besides="the step")
    expected = (values @ dequantize(first).T).relu().square() @ dequantize(second).T
    torch.testing.assert_close(forward.buffer(numbers[out.buffer], 5), expected, rtol=1e-4, atol=1e-4)
    assert seen == ["the step"]
    if variant == "native":
        with pytest.raises(ValueError, match="no single step"):
            Step(forward, 0, forward, 0, 0, tokens=_table(), blocks=_table().astype("int32")[None], block_size=16)


def test_what_is_called_may_get_two_values() -> None:
    program = Program()
    first, second = given(program), given(program)
    out = first.call("a difference", lambda one, other, besides: one - 2 * other, HIDDEN, second)
    numbers = program.compact([first.buffer, second.buffer, out.buffer])
    forward = Forward(program, variant="reference")
    one, other = normal(5, HIDDEN, seed=4), normal(5, HIDDEN, seed=5)
    forward.buffer(numbers[first.buffer], 5).copy_(one)
    forward.buffer(numbers[second.buffer], 5).copy_(other)
    forward.run(5)
    torch.testing.assert_close(forward.buffer(numbers[out.buffer], 5), one - 2 * other)


def test_what_is_called_gets_normed_columns_and_others_see_them_as_they_were() -> None:
    program = Program()
    residual, factors = given(program), normal(HIDDEN, seed=4)
    seen: list[Tensor] = []

    def doubled(rows: Tensor, besides: object) -> Tensor:
        seen.append(rows.clone())
        return rows * 2

    out = residual.normed(factors, 1e-5).call("doubling", doubled, HIDDEN)
    assert ops(program) == ["call"]
    residual.add_(out)
    numbers = program.compact([residual.buffer])
    forward = Forward(program, variant="reference")
    values = normal(5, HIDDEN, seed=5)
    forward.buffer(numbers[residual.buffer], 5).copy_(values)
    forward.run(5)
    normed = values * (values.square().mean(1, keepdim=True) + 1e-5).rsqrt() * factors
    torch.testing.assert_close(seen[0], normed)
    torch.testing.assert_close(forward.buffer(numbers[residual.buffer], 5), values + 2 * normed)


@pytest.mark.parametrize("biased", [False, True])
def test_what_is_called_gets_columns_behind_a_layer_norm(biased: bool) -> None:
    program = Program()
    residual, factors = given(program), normal(HIDDEN, seed=4)
    bias = normal(HIDDEN, seed=6) if biased else None
    out = residual.layer_normed(factors, bias, 1e-5).call("doubling", lambda rows, _: rows * 2, HIDDEN)
    numbers = program.compact([residual.buffer, out.buffer])
    forward = Forward(program, variant="reference")
    values = normal(5, HIDDEN, seed=5)
    forward.buffer(numbers[residual.buffer], 5).copy_(values)
    forward.run(5)
    expected = 2 * torch.nn.functional.layer_norm(values, (HIDDEN,), factors, bias, 1e-5)
    torch.testing.assert_close(forward.buffer(numbers[out.buffer], 5), expected)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("width", [96, 100])
def test_a_norm_has_the_bits_of_its_operation_which_runs_before_a_call(width: int, rms: bool) -> None:
    """Whether a call follows depends on the batch: experts are called beside a row with an adapter."""
    program = Program()
    x, total = (Traced.written(program, program.buffer(width)) for _ in range(2))
    factors, bias, values = normal(width, seed=4), normal(width, seed=6), normal(5, width, seed=5)
    total.add_(x.normed(factors, 1e-5) if rms else x.layer_normed(factors, bias, 1e-5))
    numbers = program.compact([x.buffer, total.buffer])
    forward = Forward(program)
    forward.buffer(numbers[x.buffer], 5).copy_(values)
    forward.buffer(numbers[total.buffer], 5).zero_()
    forward.run(5)
    expected = rms_norm(values, factors, 1e-5) if rms else layer_norm(values, factors, bias, 1e-5)
    assert torch.equal(forward.buffer(numbers[total.buffer], 5), expected)


def _table() -> Any:
    return torch.zeros(2, 16, dtype=torch.int64).numpy()
