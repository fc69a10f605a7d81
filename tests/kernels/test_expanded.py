"""Steps of many tokens on tiles: codes are multiplied as the weights of bfloat16 that they stand for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stentor.kernels import native
from stentor.kernels.forward import Forward, Program, activation_format_of
from stentor.kernels.linear_packed import PackedKind, PackedWeight, Scaling, empty_packed, pack_plain_
from stentor.kernels.linear_packed.reference import dequantize
from stentor.kernels.linear_packed.weight import PARTS
from stentor.kernels.low_rank import AdapterRows
from stentor.kernels.native.processor import TileForm, force_tiles, tile_form
from stentor.tests.kernels.forward_shapes import SHAPES
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count
from stentor.tests.kernels.packed_weights import KINDS, packed_weight
from stentor.tests.kernels.programs import Sequences
from stentor.tests.kernels.test_forward_adapters import HIDDEN, network
from stentor.tests.kernels.test_forward_step import step_over
from stentor.tests.kernels.tile_library import IS_X86, calls_to, emulated

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(not IS_X86 or native.library() is None, reason="tiles are x86's, and compiled for them"),
]

CODED = [pair for pair in KINDS if PARTS[pair[0]]]
FROM = 128
"""EXPANDED_FROM of expand.h."""
FORMS: list[TileForm] = ["emulated", "hardware"] if tile_form() == "hardware" else ["emulated"]


@contextmanager
def on(form: TileForm) -> Iterator[None]:
    with calls_to(emulated()), force_tiles(form):
        yield


def brain(weight: PackedWeight | None) -> PackedWeight | None:
    """The weight in bfloat16, if it has codes."""
    if weight is None or not PARTS[weight.kind]:
        return weight
    out = empty_packed(*weight.shape, "bf16")
    pack_plain_(out, 0, dequantize(weight).bfloat16())
    return out


def expand(program: Program) -> Program:
    """The same program, made of weights of bfloat16."""
    program.instructions = [
        replace(
            each,
            weight=brain(each.weight),
            second_weight=brain(each.second_weight),
            activation_format="bf16" if each.activation_format == "int8" else each.activation_format,
        )
        if each.op != "embed"
        else each
        for each in program.instructions
    ]
    return program


def layer(kind: PackedKind, scaling: Scaling, hidden: int, inner: int) -> tuple[Program, int, int]:
    """A product in parts with biases, one that is gated, and one from that; what goes in, and what comes out."""
    program = Program()
    x, y, both = program.buffer(hidden), program.buffer(hidden), program.buffer(2 * inner)
    taken = activation_format_of(kind)
    program.norm_and_quantize(x, taken)
    for number, (column, outputs) in enumerate(((0, 17), (17, hidden - 17))):
        weight = packed_weight(kind, outputs, hidden, scaling=scaling, seed=number)
        program.linear(y, weight, column=column, bias=normal(outputs, seed=number))
    program.norm_and_quantize(y, taken)
    for number in range(2):
        weight = packed_weight(kind, inner, hidden, scaling=scaling, seed=2 + number)
        program.linear(both, weight, column=number * inner, bias=normal(inner, seed=2 + number))
    program.activate(both, "silu", taken)
    program.linear(y, packed_weight(kind, hidden, inner, scaling=scaling, seed=4))
    return program, x, y


def result(program: Program, given: Tensor, x: int, y: int) -> Tensor:
    forward = Forward(program, variant="native")
    forward.buffer(x, len(given)).copy_(given)
    forward.run(len(given))
    return forward.buffer(y, len(given)).clone()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "scaling"), CODED)
def test_many_rows_have_the_bits_of_weights_in_bfloat16(form: TileForm, kind: PackedKind, scaling: Scaling) -> None:
    """Inputs that fill no block, with any number of threads."""
    given = normal(FROM + 5, 75, seed=9)
    with on(form):
        expected = result(expand(layer(kind, scaling, 75, 64)[0]), given, 0, 1)
        for threads in (1, 3):
            with thread_count(threads):
                assert_same_bits(result(layer(kind, scaling, 75, 64)[0], given, 0, 1), expected)


@pytest.mark.parametrize("form", FORMS)
def test_fewer_rows_have_those_of_codes(form: TileForm) -> None:
    program, x, y = layer("q4", Scaling(), 64, 32)
    given = normal(FROM, 64, seed=9)
    with on("none"):
        expected = result(program, given, x, y)
    with on(form):
        assert_same_bits(result(program, given[: FROM - 1], x, y), expected[: FROM - 1])
        found = result(program, given, x, y)
    assert not torch.equal(found, expected)
    assert (found - expected).abs().mean() < 2e-2 * expected.abs().mean()


@pytest.mark.parametrize("form", FORMS[1:] or FORMS)
def test_weights_larger_than_the_room_are_expanded_in_parts(form: TileForm) -> None:
    given = normal(FROM, 1060, seed=9)
    with on(form):
        found = result(layer("q4m", Scaling(), 1060, 2112)[0], given, 0, 1)
        assert_same_bits(found, result(expand(layer("q4m", Scaling(), 1060, 2112)[0]), given, 0, 1))


@pytest.mark.parametrize("form", FORMS)
def test_adapters_add_to_them(form: TileForm) -> None:
    given = normal(FROM + 40, HIDDEN, seed=6)
    adapted = AdapterRows.of([row % 3 - 1 for row in range(len(given))], [1] * len(given), torch.device("cpu"))
    found = []
    with on(form):
        for program in (network("q4", (8, 3))[0], expand(network("q4", (8, 3))[0])):
            forward = Forward(program, variant="native")
            forward.buffer(0, len(given)).copy_(given)
            forward.run(len(given), adapted=adapted)
            found.append(forward.buffer(0, len(given)).clone())
    assert_same_bits(found[0], found[1])


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_over_sequences_is_that_of_the_expanded_weights(form: TileForm) -> None:
    shape = replace(SHAPES["mixed"], positions=FROM)
    spans = [(0, 0, FROM - 7), (1, 0, 20)]
    with on(form):
        codes, plain = (Sequences(shape, (FROM, 20)) for _ in range(2))
        plain.forward = Forward(expand(plain.forward.program), plain.caches, variant="native")
        for mine, theirs in zip(codes.step(*spans), plain.step(*spans), strict=True):
            assert_same_bits(mine, theirs)


@pytest.mark.parametrize("form", FORMS)
def test_experts_keep_their_codes(form: TileForm) -> None:
    shape = replace(SHAPES["experts in codes"], positions=FROM)
    with on("none"):
        (expected,) = Sequences(shape, (FROM,)).step((0, 0, FROM))
    with on(form):
        (found,) = Sequences(shape, (FROM,)).step((0, 0, FROM))
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_sample_end_alone_as_they_end_among_all(form: TileForm) -> None:
    """The last layer's products then have two rows, of a step of many."""
    shape, found = replace(SHAPES["mixed"], positions=FROM), []
    with on(form):
        for every in (False, True):
            step, *_ = step_over(Sequences(shape, (FROM, 20)))
            made = step.run([(0, 0, FROM - 7, True, -1), (1, 0, 20, True, -1)], every=every)
            assert made is not None
            found.append(made[0].clone())
    assert_same_bits(found[0], found[1])
