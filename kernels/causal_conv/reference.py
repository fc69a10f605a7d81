"""y_t = f(bias + Σ_j weight_j · x_{t - width + 1 + j}) of each channel: a depthwise causal convolution.

A token sees itself and the ``width - 1`` tokens before it. At the beginning of a row these come from the state. Earlier
tokens are rounded to the state's dtype.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..state_rows import StateRows


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, rows: StateRows, activation: str
) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    width = weight.shape[1]
    for tokens, last in rows.run(state, len(x), "causal_conv"):
        own = x[tokens].float().T  # [channels, tokens]
        inputs = torch.cat([last, own.to(state.dtype).float()], dim=1)  # [channels, width - 1 + tokens]
        count = tokens.stop - tokens.start
        sums = torch.zeros(x.shape[1], count, device=x.device)
        if bias is not None:
            sums += bias.float().unsqueeze(1)
        for j in range(width):
            seen = own if j == width - 1 else inputs[:, j : j + count]
            sums += seen * weight[:, j, None].float()
        out[tokens] = (F.silu(sums) if activation == "silu" else sums).T.to(out.dtype)
        last.copy_(inputs[:, count:])
    return out
