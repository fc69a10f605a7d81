"""out = softmax(mask(softcap(scale · q kᵀ))) v, with the keys and values of each sequence gathered from its blocks.

With slopes a score gets the head's slope times the key's position less the query's, and with ``distances`` the number
of the query and head for that distance. With sinks the softmax has one more column, the head's sink, which has no
value.
"""

import torch
from torch import Tensor

from ..kv_cache import read_scaled
from .arguments import AttentionArgs


def paged_attention(args: AttentionArgs) -> Tensor:
    """Writes ``args.out``, and returns it."""
    k_cache, out, window = args.k_cache, args.out, args.window
    size = k_cache.shape[3]
    starts, lengths = args.query_start.tolist(), args.seq_lens.tolist()
    for s, length in enumerate(lengths):
        begin, end = starts[s], starts[s + 1]
        count = end - begin
        if count == 0:
            continue
        if length == 0:
            out[begin:end] = 0
            if args.logsums is not None:
                args.logsums[begin:end] = -torch.inf
            continue
        first = int(first_seen(length - count, window)) // size
        blocks = args.block_tables[s, : -(-length // size)].long()
        blocks[:first] = 0  # no query sees these keys
        short = length < (count if args.causal else 0) or len(blocks) * size < length
        if short or bool(((blocks < 0) | (blocks >= k_cache.shape[0])).any()):
            raise IndexError(
                f"paged_attention: the lengths or the block table of sequence {s} lead outside the batch or the cache"
            )
        k, v = gather(k_cache, args.v_cache, blocks, length, args.k_scale, args.v_scale)
        position = torch.arange(length - count, length, device=out.device).unsqueeze(1)
        key = torch.arange(length, device=out.device).unsqueeze(0)
        hidden = torch.zeros(count, length, dtype=torch.bool, device=out.device)
        if args.causal:
            hidden |= key > position
        if window:
            hidden |= key < first_seen(position, window)
        numbers = None if args.distances is None else args.distances if args.shared else args.distances[begin:end]
        biases = _biases(args.slopes, numbers, position, key)
        q = args.q[begin:end]
        logsums = None if args.logsums is None else args.logsums[begin:end]
        out[begin:end] = attend(q, k, v, hidden, args.scale, args.softcap, args.sinks, biases, logsums)
    return out


def gather(
    k_cache: Tensor, v_cache: Tensor, blocks: Tensor, length: int, k_scale: Tensor | None, v_scale: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns the first ``length`` keys and values of ``blocks`` int64 [n], float32 [kv_heads, length, dim] each."""
    _, kv_heads, dim, _ = k_cache.shape
    k = k_cache[blocks].permute(1, 0, 3, 2).reshape(kv_heads, -1, dim)[:, :length]
    v = v_cache[blocks].permute(1, 0, 2, 3).reshape(kv_heads, -1, dim)[:, :length]
    if k_scale is None or v_scale is None:
        return k.float(), v.float()
    if k_scale.dim() > 1:  # a scale per token, in the blocks' order
        k_scale, v_scale = (
            each[blocks].permute(1, 0, 2).reshape(kv_heads, -1)[:, :length] for each in (k_scale, v_scale)
        )
    return read_scaled(k, k_scale), read_scaled(v, v_scale)


def first_seen(position: Tensor | int, window: int) -> Tensor:
    """Returns the first key that a query at a position sees: in its ``window``, or in its chunk of ``-window`` tokens
    if that is negative."""
    at = torch.as_tensor(position)
    if window < 0:
        return at - at % -window
    return (at - window + 1).clamp(min=0) if window else torch.zeros_like(at)


def _biases(slopes: Tensor | None, distances: Tensor | None, position: Tensor, key: Tensor) -> Tensor | None:
    """Returns what slopes [Hq] and ``distances`` [Hq, E] or [n, Hq, E] add to the scores of keys [1, L] at queries [n,
    1]: [Hq, n, L]."""
    sloped = None if slopes is None else slopes.view(-1, 1, 1) * (key - position).float()
    if distances is None:
        return sloped
    back = (position - key).clamp(0, distances.shape[-1] - 1)
    by_head = distances.unsqueeze(1) if distances.dim() == 2 else distances.transpose(0, 1)
    found = by_head.expand(-1, len(back), -1).gather(2, back.expand(len(by_head), -1, -1))
    return found if sloped is None else sloped + found


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
    biases: Tensor | None = None,
    logsums: Tensor | None = None,
) -> Tensor:
    """Returns the attention of one sequence: q [n, Hq, D] over k and v [Hkv, L, D] float32, with keys ``hidden`` [n,
    L].

    ``biases`` float32 [Hq, n, L] are added to scores. ``logsums`` float32 [n, Hq] is written, see
    :func:`stentor.kernels.paged_attention`. A query that sees nothing gives zeros. The result is [n, Hq, D]
    of q's dtype.
    """
    count, heads, dim = q.shape
    kv_heads = k.shape[0]
    queries = q.float().reshape(count, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)
    scores = queries @ k.unsqueeze(1).transpose(2, 3) * scale  # [kv_heads, group, n, L]
    if softcap > 0:
        scores = torch.tanh(scores / softcap) * softcap
    if biases is not None:
        scores = scores + biases.view(kv_heads, -1, *scores.shape[2:])
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    if logsums is not None:
        logsums.copy_(torch.logsumexp(scores, dim=-1).permute(2, 0, 1).reshape(count, heads))
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[1]]
    weights = weights.masked_fill(hidden.all(dim=1).unsqueeze(1), 0.0)
    return (weights @ v.unsqueeze(1)).permute(2, 0, 1, 3).reshape(count, heads, dim).to(q.dtype)
