"""Experts as an instruction of the recorded pass: what the operations give, bit for bit, on any number of threads."""

from typing import Any

import pytest
import torch
from torch import Tensor

from stentor.kernels import Router, native, packed_experts_mlp, route
from stentor.kernels.forward import Forward, Program, Traced
from stentor.kernels.linear_packed import PackedKind, Scaling, activation_format_of, empty_packed, linear_packed
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count
from stentor.tests.kernels.packed_weights import KINDS, USUAL, packed_weight

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")

HIDDEN, INNER, EXPERTS, TOKENS = 64, 48, 8, 37
ROUTERS = (
    Router(3),
    Router(2, score="sigmoid", scale=2.5, groups=4, top_groups=2),
    Router(1, score="sigmoid", renormalize=False),
    Router(2, score="sparsemixer", renormalize=False, nearness=0.3),
    Router(2, score="sqrtsoftplus", scale=1.5),
    Router(2, renormalize=False, softcap=1.5),
)


def recorded(
    kind: PackedKind, scaling: Scaling, router: Router, into: bool, gated: bool = True
) -> tuple[Program, int, int, dict[str, Any]]:
    """A router and its experts, and beside them the tensors that the operations take."""
    program = Program()
    x = Traced.written(program, program.buffer(HIDDEN))
    scores = packed_weight("f32", EXPERTS, HIDDEN, seed=1)
    first = (2 if gated else 1) * INNER
    given: dict[str, Any] = {
        "gate_up": packed_weight(kind, EXPERTS * first, HIDDEN, scaling=scaling, seed=2),
        "down": packed_weight(kind, EXPERTS * HIDDEN, INNER, scaling=scaling, seed=3),
        "activation": "swiglu_oai" if into else "silu",
        "gate_up_bias": 0.1 * normal(EXPERTS, first, seed=4),
        "down_bias": 0.1 * normal(EXPERTS, HIDDEN, seed=5),
        "weight_input": into,
    }
    bias = normal(EXPERTS, seed=6) if router.score != "sparsemixer" else None
    out = x.moe(x.linear([(scores, 0, None)]), router, score_bias=bias, **given)
    return program, x.buffer, out.buffer, {"scores": scores, "bias": bias, "experts": given}


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@pytest.mark.parametrize(("into", "gated"), [(False, True), (True, True), (False, False)])
def test_the_pass_gives_the_bits_of_the_operations_on_any_number_of_threads(
    router: Router, kind: PackedKind, scaling: Scaling, into: bool, gated: bool
) -> None:
    program, src, dst, given = recorded(kind, scaling, router, into, gated)
    x = normal(TOKENS, HIDDEN, seed=7)
    with thread_count(1):
        routing = route(linear_packed(x, given["scores"]), router, given["bias"])
        expected = packed_experts_mlp(x, routing, **given["experts"])
    for threads, rows in ((1, TOKENS), (3, TOKENS), (2, 1)):
        forward = Forward(program)
        with thread_count(threads):
            forward.buffer(src, rows).copy_(x[:rows])
            forward.run(rows)
        assert_same_bits(forward.buffer(dst, rows), expected[:rows])


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("router", ROUTERS)
def test_the_pass_is_the_references(router: Router, gated: bool) -> None:
    program, src, dst, _ = recorded("f32", USUAL, router, into=False, gated=gated)
    found: list[Tensor] = []
    variants: tuple[Any, ...] = ("native", "reference")
    for variant in variants:
        forward = Forward(program, variant=variant)
        forward.buffer(src, TOKENS).copy_(normal(TOKENS, HIDDEN, seed=7))
        forward.run(TOKENS)
        found.append(forward.buffer(dst, TOKENS).clone())
    assert_close(found[0], found[1], 4e-6)


def test_many_layers_of_experts_end_on_every_thread() -> None:
    """A thread that comes late finds each phase as large as it was."""
    program = Program()
    x = Traced.written(program, program.buffer(16))
    for layer in range(20):
        scores, gate_up = packed_weight("f32", 4, 16, seed=layer), packed_weight("f32", 4 * 32, 16, seed=layer)
        x.add_(x.moe(x.linear([(scores, 0, None)]), Router(2), gate_up, packed_weight("f32", 64, 16), "silu"))
    results = []
    for threads in (1, 8):
        forward = Forward(program)
        with thread_count(threads):
            for rows in (1, 9) * 5:
                forward.buffer(x.buffer, rows).copy_(normal(rows, 16, seed=rows))
                forward.run(rows)
        results.append(forward.buffer(x.buffer, 9).clone())
    assert_same_bits(*results)


def test_the_router_s_form_of_the_input_is_not_taken_for_the_experts_() -> None:
    program, *_ = recorded("q4", USUAL, Router(1), into=False)
    formats = [i.activation_format for i in program.instructions if i.op == "norm_and_quantize"]
    assert formats == ["f32", activation_format_of("q4")]
    assert [i.op for i in program.instructions] == ["norm_and_quantize", "linear", "norm_and_quantize", "moe"]


def test_experts_that_do_not_fit_are_refused() -> None:
    program = Program()
    src, logits, dst, narrow = program.buffer(32), program.buffer(4), program.buffer(32), program.buffer(16)
    weights = empty_packed(4 * 32, 32, "f32"), empty_packed(4 * 32, 16, "f32")
    with pytest.raises(ValueError, match="prepared is None"):
        program.moe(logits, dst, Router(2), *weights, "silu")
    program.norm_and_quantize(src, "f32")
    before = list(program.instructions)
    with pytest.raises(ValueError, match="5 experts cannot be chosen"):
        program.moe(logits, dst, Router(5), *weights, "silu")
    with pytest.raises(ValueError, match="do not fill buffer 3 of 16"):
        program.moe(logits, narrow, Router(2), *weights, "silu")
    with pytest.raises(ValueError, match="5 columns do not fit buffer 1 of 4"):
        program.moe(logits, dst, Router(2), *weights, "silu", column=1)
    with pytest.raises(ValueError, match="packed experts: gate_up"):
        program.moe(logits, dst, Router(2), empty_packed(3 * 32, 32, "f32"), weights[1], "silu")
    with pytest.raises(ValueError, match="swiglu_oai takes a gate"):
        program.moe(logits, dst, Router(2), empty_packed(4 * 16, 32, "f32"), weights[1], "swiglu_oai")
    with pytest.raises(ValueError, match=r"score bias \(3,\) does not fit 4 experts"):
        program.moe(logits, dst, Router(2), *weights, "silu", score_bias=torch.ones(3))
    assert program.instructions == before
