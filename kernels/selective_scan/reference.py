"""The selective scan of Mamba (arXiv:2312.00752), token by token.

s_t = softplus(dt_t + dt_bias), S_t = exp(s_t A) S_{t-1} + s_t x_t B_t, y_t = (S_t · C_t + D x_t) silu(gate_t)

This is for each channel; S_t is rounded to the state's dtype.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from ..state_rows import StateRows


def selective_scan(
    x: Tensor,
    gate: Tensor,
    dt: Tensor,
    dt_bias: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    state: Tensor,
    rows: StateRows,
) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    inputs, writes, reads = x.float(), B.float(), C.float()
    steps, gates = softplus(dt.float() + dt_bias), silu(gate.float())
    for tokens, memory in rows.run(state, len(x), "selective_scan"):  # memory: [state_dim, channels]
        for t in range(tokens.start, tokens.stop):
            memory *= (steps[t] * A).exp()
            memory += writes[t].unsqueeze(1) * (steps[t] * inputs[t])
            memory.copy_(memory.to(state.dtype))
            found = (memory * reads[t].unsqueeze(1)).sum(0)  # [channels]
            out[t] = ((found + D * inputs[t]) * gates[t]).to(out.dtype)
    return out
