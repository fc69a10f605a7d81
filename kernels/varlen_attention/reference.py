"""out = softmax(mask(softcap(scale · q kᵀ))) v of each sequence; a query at position p sees [p - left, p + right]."""

import torch
from torch import Tensor

from ..attention.reference import attend
from .arguments import VarlenArgs


def varlen_attention(args: VarlenArgs) -> Tensor:
    q, k, v, left, right = args.q, args.k, args.v, args.left, args.right
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    q_ends, k_ends = args.q_start.tolist(), args.k_start.tolist()
    for s in range(len(q_ends) - 1):
        queries, keys = slice(q_ends[s], q_ends[s + 1]), slice(k_ends[s], k_ends[s + 1])
        count, length = queries.stop - queries.start, keys.stop - keys.start
        position = torch.arange(length - count, length, device=q.device).unsqueeze(1)
        key = torch.arange(length, device=q.device).unsqueeze(0)
        hidden = torch.zeros(count, length, dtype=torch.bool, device=q.device)
        if left >= 0:
            hidden |= key < position - left
        if right >= 0:
            hidden |= key > position + right
        rows = (k[keys].float().transpose(0, 1), v[keys].float().transpose(0, 1))
        out[queries] = attend(q[queries], *rows, hidden, args.scale, args.softcap, args.sinks)
    return out
