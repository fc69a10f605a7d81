"""Attention to a whole prompt and the end of an answer (Unlimited-OCR), as numbers by distance."""

from typing import Final

import torch

from ...model_config.spec.attention import AttentionSpec
from ..forward_batch import ForwardBatch

_HIDDEN: Final = -1e30
"""Added to the score of a key that is not seen: e to this power is 0 in float32."""


def answer_distances(spec: AttentionSpec, batch: ForwardBatch) -> torch.Tensor | None:
    """What is added to scores by the distance to a key, float32 [tokens, heads, distances]; None if every token sees
    all before it. Kept in the batch for later layers.

    The token with index i of its answer, from 0 on, does not see the keys that are from ``answer_window`` to i back.
    """
    if batch.carried.distances is not None:
        return batch.carried.distances
    counts = batch.attention[0].query_start.diff()
    prompts = torch.repeat_interleave(torch.tensor(batch.prompt_lens, device=counts.device), counts)
    index = batch.positions - prompts  # [tokens]; below 0 in a prompt
    most = int(index.max())
    if most < spec.answer_window:
        return None
    back = torch.arange(most + 2, device=index.device)
    hidden = (back >= spec.answer_window) & (back <= index[:, None])  # [tokens, distances]
    numbers = torch.zeros(hidden.shape, device=index.device).masked_fill_(hidden, _HIDDEN)
    batch.carried.distances = numbers[:, None].expand(-1, spec.heads, -1).contiguous()
    return batch.carried.distances
