"""Texts that stand one after another, without padding."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import torch

_TOKENS: Final = 4096
"""Of texts that are padded together."""
_SHORTEST: Final = 8


@dataclass(frozen=True)
class Padded:
    """Some of the texts, filled up to one length."""

    rows: torch.Tensor
    """int64 [texts, length]: where each token stands; a text's own first where it has none."""
    real: torch.Tensor
    """bool, the same: whether there is one."""


class VarlenBatch:
    """Where the texts of a batch begin, and what follows from it."""

    def __init__(self, cu_seqlens: torch.Tensor, max_seqlen: int) -> None:
        """``cu_seqlens`` int32 [texts + 1], on the host: text t has the tokens [starts[t], starts[t + 1])."""
        self.lengths: list[int] = cu_seqlens.diff().tolist()
        self.max_seqlen = max_seqlen
        self.host_cu_seqlens = cu_seqlens
        owner = torch.repeat_interleave(torch.arange(len(self.lengths)), cu_seqlens.diff())
        self.host_positions = torch.arange(int(cu_seqlens[-1])) - cu_seqlens[:-1].long()[owner]

    def to(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(starts int32 [texts + 1], positions int64 [tokens])"""
        return self.host_cu_seqlens.to(device), self.host_positions.to(device)

    def padded(self, device: torch.device) -> list[Padded]:
        """All texts in groups of about the same length, for what cannot do without padding."""
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for number, length in enumerate(self.lengths):
            groups[max(_SHORTEST, 1 << (length - 1).bit_length())].append(number)
        return [
            self._pad(numbers[first : first + each], device)
            for width, numbers in groups.items()
            for each in (max(1, _TOKENS // width),)
            for first in range(0, len(numbers), each)
        ]

    def _pad(self, numbers: list[int], device: torch.device) -> Padded:
        lengths = torch.tensor([self.lengths[number] for number in numbers]).unsqueeze(1)
        places = torch.arange(int(lengths.max())).unsqueeze(0)
        real = places < lengths
        begins = self.host_cu_seqlens[torch.tensor(numbers)].long().unsqueeze(1)
        return Padded((begins + places * real).to(device), real.to(device))
