"""The state space recurrence of Mamba-2 (arXiv:2405.21060), token by token.

S_t = exp(dt_t A) S_{t-1} + dt_t x_t ⊗ B_t, y_t = S_t C_t + D x_t

S_t is rounded to the state's dtype.
"""

import torch
from torch import Tensor

from ..state_rows import StateRows


def mamba2(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, rows: StateRows) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    repeats = x.shape[1] // B.shape[1]
    inputs = x.float()
    writes, reads = (part.float().repeat_interleave(repeats, dim=1) for part in (B, C))
    for tokens, memory in rows.run(state, len(x), "mamba2"):  # memory: [heads, head_dim, state_dim]
        for t in range(tokens.start, tokens.stop):
            memory *= (dt[t] * A).exp()[:, None, None]
            memory += (dt[t].unsqueeze(1) * inputs[t]).unsqueeze(2) * writes[t].unsqueeze(1)
            memory.copy_(memory.to(state.dtype))
            found = (memory * reads[t].unsqueeze(1)).sum(2)  # [heads, head_dim]
            out[t] = (found + D.unsqueeze(1) * inputs[t]).to(out.dtype)
    return out
