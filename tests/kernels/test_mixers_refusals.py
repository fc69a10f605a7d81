"""What the operations that keep a state do not take."""

import pytest
import torch

from stentor.kernels import StateRows, causal_conv, gated_delta, mamba2, selective_scan
from stentor.kernels.causal_conv import choose as choose_conv
from stentor.kernels.gated_delta import choose as choose_delta
from stentor.kernels.mamba2 import choose as choose_mamba
from stentor.kernels.selective_scan import choose as choose_scan

ROWS = StateRows.of([2], [-1], [0])


def test_the_native_variants_say_which_sizes_they_leave_to_the_reference() -> None:
    heads = torch.ones(2, 1, 257)
    assert choose_conv(heads[:, 0], 5) == choose_delta(heads) == choose_mamba(heads, 257) == "reference"
    with pytest.raises(ValueError, match="it takes widths of 2 to 4, not 5"):
        choose_conv(heads[:, 0], 5, "native")
    with pytest.raises(ValueError, match="it takes keys of up to 256 dims, not 257"):
        choose_delta(heads, "native")
    with pytest.raises(ValueError, match="it takes states of up to 256 dims, not 257"):
        choose_mamba(heads, 257, "native")
    assert choose_scan(heads[:, 0], 257) == "reference"
    with pytest.raises(ValueError, match="it takes states of up to 256 dims, not 257"):
        choose_scan(heads[:, 0], 257, "native")
    with pytest.raises(ValueError, match="it takes float32 or bfloat16, not float16"):
        choose_delta(heads.half(), "native")


def test_a_convolution_of_what_does_not_fit_is_refused() -> None:
    x, weight, bias, state = torch.ones(2, 6), torch.ones(6, 4), torch.ones(6), torch.zeros(1, 6, 3)
    causal_conv(x, weight, bias, state, ROWS, activation="silu")
    with pytest.raises(ValueError, match="channels contiguous"):
        causal_conv(torch.ones(6, 2).T, weight, bias, state, ROWS, activation="silu")
    with pytest.raises(ValueError, match=r"weight .* must be contiguous \[6, width\]"):
        causal_conv(x, weight[:, :1], bias, state, ROWS, activation="silu")
    with pytest.raises(ValueError, match=r"bias .* must be contiguous \[6\]"):
        causal_conv(x, weight, bias.bfloat16(), state, ROWS, activation="silu")
    with pytest.raises(ValueError, match=r"state .* must be contiguous \[slots, 6, 3\] of float32, bfloat16 or"):
        causal_conv(x, weight, bias, state.double(), ROWS, activation="silu")


def test_a_delta_rule_of_what_does_not_fit_is_refused() -> None:
    q, v, decay, state = torch.ones(2, 2, 8), torch.ones(2, 4, 6), torch.zeros(2, 4), torch.zeros(1, 4, 8, 6)
    gated_delta(q, q, v, decay, decay, state, ROWS, scale=1.0)
    with pytest.raises(ValueError, match=r"k .* must be .* of one float dtype"):
        gated_delta(q, q.bfloat16(), v, decay, decay, state, ROWS, scale=1.0)
    with pytest.raises(ValueError, match="heads and dims of q must be contiguous"):
        gated_delta(torch.ones(2, 2, 16)[..., ::2], q, v, decay, decay, state, ROWS, scale=1.0)
    with pytest.raises(ValueError, match="do not fit"):
        gated_delta(q, q, v[:, :3], decay[:, :3], decay[:, :3], state, ROWS, scale=1.0)
    with pytest.raises(ValueError, match=r"beta .* must be contiguous float32 \[2, 4\]"):
        gated_delta(q, q, v, decay, decay.bfloat16(), state, ROWS, scale=1.0)
    with pytest.raises(ValueError, match=r"decay .* must be contiguous float32 \[2, 4, 8\]"):
        gated_delta(q, q, v, torch.zeros(2, 4, 6), decay, state, ROWS, scale=1.0)
    with pytest.raises(ValueError, match=r"state .* must be contiguous \[slots, 4, 8, 6\] of float32, bfloat16 or"):
        gated_delta(q, q, v, decay, decay, state.double(), ROWS, scale=1.0)


def test_a_state_space_of_what_does_not_fit_is_refused() -> None:
    x, dt, factor, B, state = (
        torch.ones(2, 4, 6),
        torch.ones(2, 4),
        torch.ones(4),
        torch.ones(2, 2, 8),
        torch.zeros(1, 4, 6, 8),
    )
    mamba2(x, dt, factor, B, B, factor, state, ROWS)
    with pytest.raises(ValueError, match=r"C .* must be .* of one float dtype"):
        mamba2(x, dt, factor, B, B.bfloat16(), factor, state, ROWS)
    with pytest.raises(ValueError, match="do not fit"):
        mamba2(x, dt, factor, B[:, :1], B, factor, state, ROWS)
    with pytest.raises(ValueError, match=r"dt .* must be contiguous float32 \[2, 4\]"):
        mamba2(x, dt.bfloat16(), factor, B, B, factor, state, ROWS)
    with pytest.raises(ValueError, match=r"D .* must be contiguous float32 \[4\]"):
        mamba2(x, dt, factor, B, B, factor[:2], state, ROWS)
    with pytest.raises(ValueError, match=r"state .* must be contiguous \[slots, 4, 6, 8\] of float32"):
        mamba2(x, dt, factor, B, B, factor, state.transpose(2, 3), ROWS)


def test_a_scan_of_what_does_not_fit_is_refused() -> None:
    x, factor, A, B, state = torch.ones(2, 6), torch.ones(6), -torch.ones(8, 6), torch.ones(2, 8), torch.zeros(1, 8, 6)
    selective_scan(x, x, x, factor, A, B, B, factor, state, ROWS)
    with pytest.raises(ValueError, match=r"C .* must be .* of one float dtype"):
        selective_scan(x, x, x, factor, A, B, B.bfloat16(), factor, state, ROWS)
    with pytest.raises(ValueError, match=r"gate .* channels contiguous"):
        selective_scan(x, torch.ones(6, 2).T, x, factor, A, B, B, factor, state, ROWS)
    with pytest.raises(ValueError, match="do not fit"):
        selective_scan(x, x, x[:, :5], factor, A, B, B, factor, state, ROWS)
    with pytest.raises(ValueError, match=r"A .* must be contiguous float32 \[8, 6\]"):
        selective_scan(x, x, x, factor, A.T, B, B, factor, state, ROWS)
    with pytest.raises(ValueError, match=r"dt_bias .* must be contiguous float32 \[6\]"):
        selective_scan(x, x, x, factor.bfloat16(), A, B, B, factor, state, ROWS)
    with pytest.raises(ValueError, match=r"state .* must be contiguous \[slots, 8, 6\] of float32"):
        selective_scan(x, x, x, factor, A, B, B, factor, state.transpose(1, 2), ROWS)
