"""Log-probabilities of prompt tokens, from the hidden states of a step."""

from collections.abc import Callable, Sequence

import torch

from stentor.protocols.ipc.steps import PromptLogprobs, RowStep

from .rows import RowTable
from .sampler import Sampler

_LOGIT_ROWS = 64
"""Prompt positions whose logits are held at once: a vocabulary of 128k in float32 is then 32 MiB."""


def read_prompt_logprobs(
    rows: Sequence[RowStep],
    starts: Sequence[int],
    table: RowTable,
    hidden: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    sampler: Sampler,
) -> list[PromptLogprobs]:
    """What the step says about prompt tokens, for the rows that asked.

    ``starts`` is where each row begins in ``hidden`` [tokens, hidden], which ``logits_of`` turns into logits.
    """
    found = []
    for row, start in zip(rows, starts, strict=True):
        top, prompt_len = table.prompt_logprobs[row.slot], table.prompt_len(row.slot)
        if top is None or row.start + 1 >= prompt_len:
            continue
        end = min(row.start + row.count + 1, prompt_len)
        following: list[int] = table.tokens[row.slot, row.start + 1 : end].tolist()
        positions = []
        for offset in range(0, len(following), _LOGIT_ROWS):
            piece = following[offset : offset + _LOGIT_ROWS]
            logits = logits_of(hidden[start + offset : start + offset + len(piece)])
            positions += sampler.prompt_logprobs(logits, piece, top)
        found.append(PromptLogprobs(slot=row.slot, start=row.start + 1, positions=positions))
    return found
