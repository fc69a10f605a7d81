"""The operations that keep a state, as transformers computes them in its models, in float32."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import (
    chunk_kimi_delta_attention,
    recurrent_kimi_delta_attention,
)
from transformers.models.lfm2.modeling_lfm2 import causal_conv1d_fn, causal_conv1d_update
from transformers.models.mamba.modeling_mamba import mamba_selective_scan, mamba_selective_state_update
from transformers.models.nemotron_h.modeling_nemotron_h import mamba2_chunk_scan, mamba2_selective_state_update
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from stentor.kernels import StateRows, causal_conv, gated_delta, mamba2, selective_scan
from stentor.kernels.variants import Choice
from stentor.tests.kernels.helpers import assert_close, assert_same_bits
from stentor.tests.kernels.mixers import Conv, Delta, Mamba, Scan

VARIANTS = ("native", "reference")
LENGTHS = [1, 200, 17, 64]
READS, WRITES = [4, -1, 5, -1], [0, 1, 2, 3]
TOKENS = torch.float32


def rows() -> tuple[StateRows, list[slice]]:
    """The rows of a batch, and which tokens are whose."""
    batch = StateRows.of(LENGTHS, READS, WRITES)
    starts = batch.cu_seqlens.tolist()
    return batch, [slice(*pair) for pair in pairwise(starts)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rule", [torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule])
@pytest.mark.parametrize("l2norm", [True, False])
def test_the_gated_delta_rule_is_that_of_qwen3_next(rule: object, l2norm: bool, variant: Choice) -> None:
    assert callable(rule)
    delta = Delta(2, 4, 32, 48, l2norm=l2norm)
    tokens, state = delta.tokens(sum(LENGTHS), seed=1, dtype=TOKENS), delta.state(6, seed=2, dtype=TOKENS)
    before = state.clone()
    batch, owners = rows()
    found = gated_delta(**tokens, state=state, rows=batch, scale=32**-0.5, l2norm=l2norm, variant=variant)
    for own, read, write in zip(owners, READS, WRITES, strict=True):
        q, k, v, decay, beta = (tensor[own].unsqueeze(0) for tensor in tokens.values())
        # older releases want as many heads of keys as of values
        q, k = (each.repeat_interleave(2, dim=2) for each in (q, k))
        expected, after = rule(
            q,
            k,
            v,
            g=decay,
            beta=beta,
            initial_state=before[read].unsqueeze(0) if read >= 0 else None,
            output_final_state=True,
            use_qk_l2norm_in_kernel=l2norm,
        )
        assert_close(found[own], expected[0], 1e-5)
        assert_close(state[write], after[0], 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rule", [recurrent_kimi_delta_attention, chunk_kimi_delta_attention])
def test_the_gated_delta_rule_by_channel_is_that_of_kimi_linear(rule: object, variant: Choice) -> None:
    assert callable(rule)
    delta = Delta(4, 4, 24, 48, by_channel=True)
    tokens, state = delta.tokens(sum(LENGTHS), seed=1, dtype=TOKENS), delta.state(6, seed=2, dtype=TOKENS)
    before = state.clone()
    batch, owners = rows()
    found = gated_delta(**tokens, state=state, rows=batch, scale=24**-0.5, l2norm=True, variant=variant)
    for own, read, write in zip(owners, READS, WRITES, strict=True):
        expected, after = rule(
            *(tensor[own].unsqueeze(0) for tensor in tokens.values()),
            initial_state=before[read].unsqueeze(0) if read >= 0 else None,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        assert_close(found[own], expected[0], 1e-5)
        assert_close(state[write], after[0], 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_mamba2_is_the_chunk_scan_of_nemotron_h(variant: Choice) -> None:
    mamba = Mamba(4, 2, 16, 24)
    tokens, state = mamba.tokens(sum(LENGTHS), seed=1, dtype=TOKENS), mamba.state(6, seed=2, dtype=TOKENS)
    before, (A, D) = state.clone(), mamba.weights(state)
    batch, owners = rows()
    found = mamba2(**tokens, A=A, D=D, state=state, rows=batch, variant=variant)
    for own, read, write in zip(owners, READS, WRITES, strict=True):
        x, dt, B, C = (tensor[own].unsqueeze(0) for tensor in tokens.values())
        initial = before[read].unsqueeze(0) if read >= 0 else None
        expected, after = mamba2_chunk_scan(
            x, dt, A, B, C, chunk_size=32, D=D, initial_states=initial, return_final_states=True
        )
        assert_close(found[own], expected[0], 1e-5)
        assert_close(state[write], after[0], 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_of_mamba2_is_that_of_nemotron_h(variant: Choice) -> None:
    mamba = Mamba(4, 2, 16, 24)
    tokens, state = mamba.tokens(3, seed=1, dtype=TOKENS), mamba.state(3, seed=2, dtype=TOKENS)
    after, (A, D) = state.clone(), mamba.weights(state)
    found = mamba2(**tokens, A=A, D=D, state=state, rows=StateRows.of([1] * 3, range(3), range(3)), variant=variant)
    x, dt, B, C = tokens.values()
    wide = (
        dt.unsqueeze(2).expand(x.shape),
        A[:, None, None].expand(after.shape[1:]),
        B,
        C,
        D[:, None].expand(x.shape[1:]),
    )
    assert_close(found, mamba2_selective_state_update(after, x, *wide))
    assert_close(state, after)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_scan_is_that_of_mamba(variant: Choice) -> None:
    """It begins with zeros there: rows that read a state go on with another's tokens behind them."""
    scan = Scan(40, 16)
    tokens, state = scan.tokens(sum(LENGTHS), seed=1, dtype=TOKENS), scan.state(6, seed=2, dtype=TOKENS)
    bias, A, D = scan.weights(state)
    batch, owners = rows()
    batch = replace(batch, reads=torch.full((4,), -1))
    found = selective_scan(**tokens, dt_bias=bias, A=A, D=D, state=state, rows=batch, variant=variant)
    for own, write in zip(owners, WRITES, strict=True):
        x, gate, dt, B, C = (tensor[own].T.unsqueeze(0) for tensor in tokens.values())
        expected, after = mamba_selective_scan(
            *(x, dt, A.T, B, C), D=D, z=gate, delta_bias=bias, delta_softplus=True, return_last_state=True
        )
        assert_close(found[own], expected[0].T, 1e-5)
        assert_close(state[write], after[0].T, 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_of_the_scan_is_that_of_mamba(variant: Choice) -> None:
    scan = Scan(40, 16)
    tokens, state = scan.tokens(3, seed=1, dtype=TOKENS), scan.state(3, seed=2, dtype=TOKENS)
    after, (bias, A, D) = state.transpose(1, 2).clone(), scan.weights(state)
    batch = StateRows.of([1] * 3, range(3), range(3))
    found = selective_scan(**tokens, dt_bias=bias, A=A, D=D, state=state, rows=batch, variant=variant)
    x, gate, dt, B, C = tokens.values()
    expected = mamba_selective_state_update(after, x, dt, A.T, B, C, D, z=gate, dt_bias=bias, dt_softplus=True)
    assert_close(found, expected, 1e-5)
    assert_close(state, after.transpose(1, 2), 1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dt", [-30.0, -10.0, -1.0, 0.0, 3.0, 19.0, 60.0])
def test_steps_are_exact_however_small(dt: float, variant: Choice) -> None:
    """Of one token of a state of zeros, which takes the step itself."""
    state, one = torch.zeros(1, 1, 1), torch.ones(1, 1)
    steps, zero = torch.full((1, 1), dt), torch.zeros(1)
    selective_scan(one, one, steps, zero, -one, one, one, zero, state, StateRows.of([1], [-1], [0]), variant=variant)
    assert float(state) == pytest.approx(float(torch.nn.functional.softplus(steps.double())), rel=3e-7)


def conv_of(conv: Conv) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    tokens, state = conv.tokens(sum(LENGTHS), seed=1, dtype=TOKENS), conv.state(6, seed=2, dtype=TOKENS)
    return tokens["x"], state, *conv.weights(state)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("conv", [Conv(20, 3, bias=False, activation="none"), Conv(33, 4)])
def test_the_convolution_is_that_of_lfm2(conv: Conv, variant: Choice) -> None:
    x, state, weight, bias = conv_of(conv)
    before, activation = state.clone(), None if conv.activation == "none" else conv.activation
    batch, owners = rows()
    found = causal_conv(x, weight, bias, state, batch, activation=conv.activation, variant=variant)
    for own, read, write in zip(owners, READS, WRITES, strict=True):
        past = before[read] if read >= 0 else torch.zeros_like(before[0])
        inputs = torch.cat([past, x[own].T], dim=1).unsqueeze(0)  # [1, channels, width - 1 + tokens]
        expected = causal_conv1d_fn(inputs, weight, bias, activation=activation)[0, :, past.shape[1] :]
        assert_close(found[own], expected.T)
        assert_same_bits(state[write], inputs[0, :, inputs.shape[2] - past.shape[1] :])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_of_the_convolution_is_that_of_lfm2(variant: Choice) -> None:
    x, state, weight, bias = conv_of(Conv(20, 3, activation="none"))
    after = state.clone()
    batch = StateRows.of([1] * 6, range(6), range(6))
    found = causal_conv(x[:6], weight, bias, state, batch, activation="none", variant=variant)
    assert_close(found, causal_conv1d_update(x[:6].unsqueeze(2), after, weight, bias).squeeze(2))
    assert_same_bits(state, after)
