"""Log-probabilities: what rows ask for, and how they become messages."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs

LogprobTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Result of ``kernels.sampling.logprobs``: values [n], ranks [n], alternatives [n, top + ids] and their values."""


class Alternatives(NamedTuple):
    """The tokens whose log-probabilities a row asks for beside the sampled one."""

    top: int
    """How many of the most likely."""
    ids: tuple[int, ...] = ()
    """In place of them: these."""
    processed: bool = False
    """Of the distribution that the row samples from, in place of the model's."""
    logits: bool = False
    """Logits in place of log-probabilities."""

    @classmethod
    def of(cls, params: SamplingParams, vocab_size: int) -> "Alternatives | None":
        """None: no log-probability. Ids outside the vocabulary are ignored."""
        if params.logprobs is None:
            return None
        if not params.logprob_token_ids:
            return cls(params.logprobs, processed=params.processed_logprobs, logits=params.logits)
        ids = tuple(token for token in params.logprob_token_ids if 0 <= token < vocab_size)
        return cls(0, ids, params.processed_logprobs, params.logits)


def widest(asked: Sequence[Alternatives]) -> tuple[int, list[list[int]]]:
    """The arguments ``top`` and ``ids`` [n, most ids] with which one call serves all; shorter lists end in token 0."""
    most = max((len(each.ids) for each in asked), default=0)
    return max((each.top for each in asked), default=0), [[*each.ids, *[0] * (most - len(each.ids))] for each in asked]


def with_logits(
    found: LogprobTensors, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor
) -> LogprobTensors:
    """``found`` with logits in place of the log-probabilities of the rows that are ``wanted`` [n].

    ``logits`` [R, V], ``rows`` [n] and ``tokens`` [n] are those that it was made of. NaN becomes -inf. Nothing waits
    for the device.
    """
    values, ranks, best, best_values = found
    places = torch.cat((tokens[:, None], best), dim=1)
    own = logits[rows[:, None], places].float()  # [n, 1 + alternatives]
    own = torch.where(own.isnan(), -math.inf, own)
    return (
        torch.where(wanted, own[:, 0], values),
        ranks,
        best,
        torch.where(wanted[:, None], own[:, 1:], best_values),
    )


def logprob_entries(tokens: Sequence[int], asked: Sequence[Alternatives], found: LogprobTensors) -> list[TokenLogprobs]:
    """One entry a token, with the alternatives that were asked for."""
    values, ranks, ids, id_values = found
    given = ids.shape[1] - max((len(each.ids) for each in asked), default=0)  # the first column of given ids
    entries = []
    for token, each, value, rank, row, row_values in zip(
        tokens, asked, values.tolist(), ranks.tolist(), ids.tolist(), id_values.tolist(), strict=True
    ):
        own = slice(given, given + len(each.ids)) if each.ids else slice(0, min(each.top, given))
        entries.append(TokenLogprobs(token, value, rank, list(zip(row[own], row_values[own], strict=True))))
    return entries
