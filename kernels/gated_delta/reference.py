"""The gated delta rule (arXiv:2412.06464), token by token.

S_t = exp(decay_t) S_{t-1} + k_t ⊗ beta_t (v_t - k_tᵀ exp(decay_t) S_{t-1}), o_t = scale · q_tᵀ S_t

The decay belongs to a whole state or to each of its channels. S_t is rounded to the state's dtype.
"""

import torch
from torch import Tensor

from ..state_rows import StateRows

L2_EPS = 1e-6


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    rows: StateRows,
    scale: float,
    l2norm: bool,
) -> Tensor:
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    repeats = v.shape[1] // q.shape[1]
    queries, keys, values = q.float(), k.float(), v.float()
    if l2norm:
        queries, keys = unit(queries), unit(keys)
    factors = decay if decay.dim() == 3 else decay.unsqueeze(2)  # [tokens, v_heads, k_dim or 1]
    queries, keys = queries.repeat_interleave(repeats, dim=1), keys.repeat_interleave(repeats, dim=1)
    for tokens, memory in rows.run(state, len(v), "gated_delta"):  # memory: [v_heads, k_dim, v_dim]
        for t in range(tokens.start, tokens.stop):
            memory *= factors[t].exp().unsqueeze(2)
            found = (keys[t].unsqueeze(2) * memory).sum(1)  # [v_heads, v_dim]
            change = beta[t].unsqueeze(1) * (values[t] - found)
            memory += keys[t].unsqueeze(2) * change.unsqueeze(1)
            memory.copy_(memory.to(state.dtype))
            out[t] = (scale * (queries[t].unsqueeze(2) * memory).sum(1)).to(out.dtype)
    return out


def unit(x: Tensor) -> Tensor:
    """Norms each head to length one."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPS)
