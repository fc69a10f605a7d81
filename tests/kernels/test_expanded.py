"""Tokens of prompts on tiles: codes are multiplied as the weights of bfloat16 that they stand for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stentor.kernels import Router, native
from stentor.kernels.forward import Forward, Program, activation_format_of
from stentor.kernels.linear_packed import PackedKind, PackedWeight, Scaling, empty_packed, pack_plain_
from stentor.kernels.linear_packed.reference import dequantize
from stentor.kernels.linear_packed.weight import PARTS
from stentor.kernels.low_rank import AdapterRows
from stentor.kernels.native.processor import TileForm, force_tiles, tile_form
from stentor.tests.kernels.forward_shapes import SHAPES
from stentor.tests.kernels.helpers import COMPILES, assert_same_bits, normal, thread_count
from stentor.tests.kernels.packed_weights import KINDS, packed_weight
from stentor.tests.kernels.programs import Sequences
from stentor.tests.kernels.test_forward_adapters import HIDDEN, network
from stentor.tests.kernels.test_forward_step import step_over
from stentor.tests.kernels.test_moe_forward import recorded
from stentor.tests.kernels.tile_library import IS_X86, calls_to, emulated

pytestmark = [
    pytest.mark.proof,
    COMPILES,
    pytest.mark.skipif(not IS_X86 or native.library() is None, reason="tiles are x86's, and compiled for them"),
]

CODED = [pair for pair in KINDS if PARTS[pair[0]]]
ROWS = 45
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


def result(program: Program, given: Tensor, x: int, y: int, *, coded: int = 0) -> Tensor:
    forward = Forward(program, variant="native")
    forward.buffer(x, len(given)).copy_(given)
    forward.run(len(given), coded=coded)
    return forward.buffer(y, len(given)).clone()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "scaling"), CODED)
def test_rows_have_the_bits_of_weights_in_bfloat16(form: TileForm, kind: PackedKind, scaling: Scaling) -> None:
    """Inputs that fill no block, few rows and many, with any number of threads."""
    with on(form):
        for rows in (3, 133):
            given = normal(rows, 75, seed=9)
            expected = result(expand(layer(kind, scaling, 75, 64)[0]), given, 0, 1)
            for threads in (1, 3):
                with thread_count(threads):
                    assert_same_bits(result(layer(kind, scaling, 75, 64)[0], given, 0, 1), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "scaling"), CODED)
def test_rows_before_them_have_those_of_codes(form: TileForm, kind: PackedKind, scaling: Scaling) -> None:
    program, x, y = layer(kind, scaling, 75, 64)
    given = normal(ROWS, 75, seed=9)
    with on("none"):
        of_codes = result(program, given, x, y)
    with on(form):
        expanded = result(layer(kind, scaling, 75, 64)[0], given, x, y)
        assert not torch.equal(expanded, of_codes)
        assert (expanded - of_codes).abs().mean() < 2e-2 * of_codes.abs().mean()
        for coded in (1, 17, ROWS - 1, ROWS):
            found = result(layer(kind, scaling, 75, 64)[0], given, x, y, coded=coded)
            assert_same_bits(found[:coded], of_codes[:coded])
            assert_same_bits(found[coded:], expanded[coded:])


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_nobody_counts_multiplies_codes_as_they_are(form: TileForm) -> None:
    given = normal(133, 64, seed=9)
    with on("none"):
        expected = result(layer("q4", Scaling(), 64, 32)[0], given, 0, 1)
    with on(form):
        forward = Forward(layer("q4", Scaling(), 64, 32)[0], variant="native")
        forward.buffer(0, 133).copy_(given)
        forward.run(133)
        assert forward.expands
        assert_same_bits(forward.buffer(1, 133), expected)


@pytest.mark.parametrize("form", FORMS[1:] or FORMS)
@pytest.mark.parametrize(("rows", "hidden", "inner"), [(ROWS, 1060, 2112), (600, 75, 64)])
def test_long_rows_and_many_have_them_too(form: TileForm, rows: int, hidden: int, inner: int) -> None:
    """Rows take their weights in several stretches, and more than are gated at once meet what was written out."""
    given = normal(rows, hidden, seed=9)
    with on(form):
        found = result(layer("q4m", Scaling(), hidden, inner)[0], given, 0, 1)
        assert_same_bits(found, result(expand(layer("q4m", Scaling(), hidden, inner)[0]), given, 0, 1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("coded", [0, 20])
def test_adapters_add_to_them(form: TileForm, coded: int) -> None:
    """Rows of each adapter are among both."""
    given = normal(ROWS, HIDDEN, seed=6)
    adapted = AdapterRows.of([row % 3 - 1 for row in range(ROWS)], [1] * ROWS, torch.device("cpu"))

    def added(program: Program, coded: int | None) -> Tensor:
        forward = Forward(program, variant="native")
        forward.buffer(0, ROWS).copy_(given)
        forward.run(ROWS, adapted=adapted, coded=coded)
        return forward.buffer(0, ROWS).clone()

    with on(form):
        found = added(network("q4", (8, 3))[0], coded)
        assert_same_bits(found[:coded], added(network("q4", (8, 3))[0], None)[:coded])
        assert_same_bits(found[coded:], added(expand(network("q4", (8, 3))[0]), None)[coded:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["mixed", "windowed", "coded cache"])
def test_a_pass_over_sequences_of_both_is_one_over_each(form: TileForm, name: str) -> None:
    """Chunks of prompts behind rows that decode."""
    shape, lengths = replace(SHAPES[name], positions=64, kinds=SHAPES["mixed"].kinds), (50, 20, 9, 33)
    with on(form):
        both, codes, plain = (Sequences(shape, lengths) for _ in range(3))
        plain.forward = Forward(expand(plain.forward.program), plain.caches, variant="native")
        for decoding, prompts in (([], [(0, 0, 50), (3, 0, 20)]), ([(1, 0, 20), (2, 0, 8)], [(3, 20, 13)])):
            coded = sum(count for _, _, count in decoding)
            found = both.step(*decoding, *prompts, coded=coded)
            alone = [*(codes.step(*decoding) if decoding else []), *plain.step(*prompts)]
            for mine, theirs in zip(found, alone, strict=True):
                assert_same_bits(mine, theirs)


@pytest.mark.parametrize("form", FORMS)
def test_experts_keep_their_codes_for_rows_that_only_dense_layers_expand(form: TileForm) -> None:
    program, x, y, _ = recorded("q4", Scaling(), Router(2), into=False)
    given = normal(ROWS, program.widths[x], seed=9)
    with on("none"):
        expected = result(program, given, x, y)
    with on(form):
        assert Forward(program, variant="native").expands
        assert_same_bits(result(program, given, x, y), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("coded", [0, 1, 2, 3])
def test_rows_that_sample_end_alone_as_they_end_among_all(form: TileForm, coded: int) -> None:
    """The last layer's products then have a few rows, of a step of many."""
    shape, found = replace(SHAPES["mixed"], positions=64), []
    work = [(0, 0, ROWS - 7, 1, -1), (1, 0, 20, 3, -1), (2, 0, 12, 1, -1)]
    with on(form):
        for every in (False, True):
            step, *_ = step_over(Sequences(shape, (ROWS, 20, 12)))
            made = step.run(work, every=every, coded=coded)
            assert made is not None
            found.append(made[0].clone())
        alone = []
        for number, row in enumerate(work):
            step, *_ = step_over(Sequences(shape, (ROWS, 20, 12)))
            made = step.run([row], coded=int(number < coded))
            assert made is not None
            alone.append(made[0].clone())
    assert_same_bits(found[0], found[1])
    assert_same_bits(found[0], torch.cat(alone))
