"""Log-probabilities as messages."""

import itertools
from collections.abc import Sequence

import torch

from stentor.protocols.ipc.steps import TokenLogprobs

LogprobTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Result of ``kernels.sampling.logprobs``: values [n], ranks [n], alternatives [n, top] and their values."""


def logprob_entries(tokens: Sequence[int], top_logprobs: Sequence[int], found: LogprobTensors) -> list[TokenLogprobs]:
    """One entry a token, with as many alternatives as requested."""
    return [
        TokenLogprobs(token, value, rank, list(itertools.islice(zip(ids, id_values, strict=True), top)))
        for token, value, rank, ids, id_values, top in zip(
            tokens, *(tensor.tolist() for tensor in found), top_logprobs, strict=True
        )
    ]
