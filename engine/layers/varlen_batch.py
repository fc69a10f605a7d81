"""Concatenated texts without padding."""

from collections import defaultdict
from typing import Final

import msgspec
import torch

_TOKENS: Final = 4096
"""Tokens of texts padded together."""
_SHORTEST: Final = 8


class Padded(msgspec.Struct, frozen=True):
    """Some of the texts, padded to one length."""

    rows: torch.Tensor
    """int64 [texts, length]: index of each token; the text's first one for padding."""
    real: torch.Tensor
    """bool [texts, length]: False for padding."""
    tokens: torch.Tensor
    """int64 [tokens]: index of each token of these texts."""
    places: torch.Tensor
    """int64 [tokens]: its place among texts · length. With both, the device need not count what is real."""


class VarlenBatch:
    """Offsets, lengths and positions of the texts of a batch."""

    def __init__(self, cu_seqlens: torch.Tensor, max_seqlen: int) -> None:
        """``cu_seqlens``: int32 [texts + 1], on the host; text t has the tokens [cu_seqlens[t], cu_seqlens[t + 1])."""
        self.lengths: list[int] = cu_seqlens.diff().tolist()
        self.max_seqlen = max_seqlen
        self.host_cu_seqlens = cu_seqlens
        owner = torch.repeat_interleave(torch.arange(len(self.lengths)), cu_seqlens.diff())
        self.host_positions = torch.arange(int(cu_seqlens[-1])) - cu_seqlens[:-1].long()[owner]

    def to(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(cu_seqlens int32 [texts + 1], positions int64 [tokens]) on a device."""
        return self.host_cu_seqlens.to(device), self.host_positions.to(device)

    def padded(self, device: torch.device) -> list[Padded]:
        """All texts, padded in groups of similar length."""
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
        rows = begins + places * real
        return Padded(*(part.to(device) for part in (rows, real, rows[real], real.flatten().nonzero()[:, 0])))
