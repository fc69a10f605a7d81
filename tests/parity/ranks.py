"""Runs a model on several ranks of one process at once, each with its part of it."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from stentor.engine.layers.linear.rank_group import RankGroup
from stentor.tests.parity.cuts import LENGTH, prompt_of
from stentor.tests.parity.paged import PagedDecoder

CPU = torch.device("cpu")


def on_each_rank(size: int, run: Callable[[RankGroup], list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """What ``run`` makes as each rank; all at once, for each waits for the others. None of them leaves before the last
    has joined."""
    meeting = os.memfd_create("ranks")
    try:
        with ThreadPoolExecutor(size) as threads:
            groups = list(threads.map(lambda rank: RankGroup(rank, size, meeting, CPU), range(size)))
            return list(threads.map(run, groups))
    finally:
        os.close(meeting)


def logits_of(
    path: Path, size: int, *, packed: bool | None = False, whole_experts: bool = False, staged: bool = False
) -> list[list[torch.Tensor]]:
    """Of two prompts in chunks and single tokens, by rank; ``packed``, ``whole_experts`` and ``staged`` as
    :class:`.paged.PagedDecoder` has them."""
    prompt, other = prompt_of(1), prompt_of(2, 40)

    def run(ranks: RankGroup) -> list[torch.Tensor]:
        ours = PagedDecoder(path, packed=packed, ranks=ranks, whole_experts=whole_experts, staged=staged)
        ours.add(0, prompt)
        ours.add(1, other)
        start, whole = ours.run((0, 0, 50), (1, 0, 40))
        rest = [ours.run((0, at, 1))[0] for at in range(50, 53)]
        (end,) = ours.run((0, 53, LENGTH - 53))
        return [torch.cat([start, *rest, end]), whole]

    return on_each_rank(size, run)
