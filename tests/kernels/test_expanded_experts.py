"""Prompts of mixtures on tiles: experts expand their codes for long prompts, and dense layers beside them sooner."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stentor.kernels import Router, native
from stentor.kernels.forward import Forward, Program, activation_format_of
from stentor.kernels.linear_packed import PackedKind, Scaling
from stentor.kernels.native.processor import TileForm
from stentor.tests.kernels.forward_shapes import SHAPES
from stentor.tests.kernels.helpers import COMPILES, assert_same_bits, normal, thread_count
from stentor.tests.kernels.packed_weights import packed_weight
from stentor.tests.kernels.programs import Sequences
from stentor.tests.kernels.test_expanded import CODED, FORMS, expand, on
from stentor.tests.kernels.test_forward_step import step_over
from stentor.tests.kernels.test_moe_forward import HIDDEN, recorded
from stentor.tests.kernels.tile_library import IS_X86

pytestmark = [
    pytest.mark.proof,
    COMPILES,
    pytest.mark.skipif(not IS_X86 or native.library() is None, reason="tiles are x86's, and compiled for them"),
]

ROWS = 45


def mixture(kind: PackedKind) -> tuple[Program, int, int, int]:
    """A shared expert and others that read one prepared input: what goes in, and what comes of each."""
    program = Program()
    x, scores, mixed, both, beside = (program.buffer(width) for width in (64, 6, 64, 64, 64))
    taken = activation_format_of(kind)
    program.norm_and_quantize(x, taken)
    program.linear(scores, packed_weight(kind, 6, 64, seed=5))
    experts = packed_weight(kind, 6 * 2 * 48, 64, seed=3), packed_weight(kind, 6 * 64, 48, seed=4)
    program.moe(scores, mixed, Router(2), *experts, "silu")
    program.linear(both, packed_weight(kind, 2 * 32, 64, seed=1))
    program.activate(both, "silu", taken)
    program.linear(beside, packed_weight(kind, 64, 32, seed=2))
    return program, x, beside, mixed


def parts(program: tuple[Program, int, int, int], x: Tensor, forms: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """What comes of the shared expert, and of the others."""
    recorded_program, src, beside, mixed = program
    forward = Forward(recorded_program, variant="native")
    forward.buffer(src, len(x)).copy_(x)
    coded, coded_experts = forms or (None, None)
    forward.run(len(x), coded=coded, coded_experts=coded_experts)
    return forward.buffer(beside, len(x)).clone(), forward.buffer(mixed, len(x)).clone()


def compare(kind: PackedKind, scaling: Scaling, into: bool, rows: int) -> None:
    """Rows from some on have the bits of experts in bfloat16, those before them the bits of codes."""
    program, src, dst, _ = recorded(kind, scaling, Router(2), into)
    x = normal(rows, HIDDEN, seed=7)

    def result(program: Program, coded: int | None = None) -> Tensor:
        forward = Forward(program, variant="native")
        forward.buffer(src, rows).copy_(x)
        forward.run(rows, coded=coded, coded_experts=coded)
        return forward.buffer(dst, rows).clone()

    codes, brain = result(program), result(expand(recorded(kind, scaling, Router(2), into)[0]))
    assert not torch.equal(codes, brain)
    assert (codes - brain).abs().mean() < 3e-2 * codes.abs().mean()
    for coded, threads in ((0, 1), (1, 3), (rows // 2, 2)):
        with thread_count(threads):
            found = result(program, coded)
        assert_same_bits(found[:coded], codes[:coded])
        assert_same_bits(found[coded:], brain[coded:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "scaling"), CODED)
def test_rows_have_the_bits_of_experts_in_bfloat16(form: TileForm, kind: PackedKind, scaling: Scaling) -> None:
    """Few rows and many, whose weights multiply the output or the input."""
    with on(form):
        for into, rows in ((False, 3), (False, 133), (True, 70)):
            compare(kind, scaling, into, rows)


def test_experts_of_more_rows_than_are_gated_at_once_have_them_too() -> None:
    with on(FORMS[-1]):
        compare("q4m", Scaling(), False, 1600)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("forms", [(0, ROWS), (0, 0), (5, 20), (17, 17), (ROWS, ROWS), (30, ROWS)])
def test_a_shared_expert_expands_for_rows_whose_experts_do_not(form: TileForm, forms: tuple[int, int]) -> None:
    """They read one input, which is there in both forms."""
    x = normal(ROWS, 64, seed=3)
    with on(form):
        codes, brain = parts(mixture("q4"), x, None), parts(mixture("q4"), x, (0, 0))
        found = parts(mixture("q4"), x, forms)
        # which experts a row has depends on the form of its router
        of_codes = parts(mixture("q4"), x, (0, ROWS))
    dense, experts = forms
    assert_same_bits(found[0][:dense], codes[0][:dense])
    assert_same_bits(found[0][dense:], brain[0][dense:])
    assert_same_bits(found[1][:dense], codes[1][:dense])
    assert_same_bits(found[1][dense:experts], of_codes[1][dense:experts])
    assert_same_bits(found[1][experts:], brain[1][experts:])
    assert not torch.equal(of_codes[1], brain[1])


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_over_sequences_of_all_three_forms_is_one_over_each(form: TileForm) -> None:
    """Rows that decode, a short prompt, and chunks of a long one."""
    shape, lengths = replace(SHAPES["experts in codes"], positions=64), (50, 20, 33)
    decoding, short, long = (1, 0, 20), (2, 0, 33), [(0, 0, 30), (0, 30, 20)]
    with on(form):
        together, alone = Sequences(shape, lengths), Sequences(shape, lengths)
        found = [
            *together.step(decoding, short, long[0], coded=20, coded_experts=53),
            *together.step(long[1], coded=0, coded_experts=0),
        ]
        expected = [
            *alone.step(decoding),
            *alone.step(short, coded=0),
            *(alone.step(chunk, coded=0, coded_experts=0)[0] for chunk in long),
        ]
    for mine, theirs in zip(found, expected, strict=True):
        assert_same_bits(mine, theirs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("forms", [(0, 0), (0, 3), (1, 2), (2, 2), (3, 3)])
def test_rows_that_sample_end_alone_as_they_end_among_all(form: TileForm, forms: tuple[int, int]) -> None:
    """The last layer's experts then have a few rows, of a step of many."""
    shape, found = replace(SHAPES["experts in codes"], positions=64), []
    work = [(0, 0, ROWS - 7, 1, -1), (1, 0, 20, 3, -1), (2, 0, 12, 1, -1)]
    coded, experts = forms
    with on(form):
        for every in (False, True):
            step, *_ = step_over(Sequences(shape, (ROWS, 20, 12)))
            made = step.run(work, every=every, coded=coded, coded_experts=experts)
            assert made is not None
            found.append(made[0].clone())
        alone = []
        for number, row in enumerate(work):
            step, *_ = step_over(Sequences(shape, (ROWS, 20, 12)))
            made = step.run([row], coded=int(number < coded), coded_experts=int(number < experts))
            assert made is not None
            alone.append(made[0].clone())
    assert_same_bits(found[0], found[1])
    assert_same_bits(found[0], torch.cat(alone))


@pytest.mark.parametrize("form", FORMS)
def test_forms_out_of_order_are_refused(form: TileForm) -> None:
    with on(form):
        forward = Forward(mixture("q4")[0], variant="native")
        for forms in ((5, 3), (-1, 3), (3, 9)):
            with pytest.raises(IndexError, match="expand codes before those"):
                forward.run(8, coded=forms[0], coded_experts=forms[1])


def test_a_program_says_of_how_many_tokens_an_expert_takes_one() -> None:
    assert Forward(mixture("q4")[0], variant="native").tokens_per_row == 3
    assert Forward(Program(), variant="native").tokens_per_row == 1
