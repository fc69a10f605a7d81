"""Texts that stand one after another, without padding."""

import torch


class Texts:
    """Where the texts of a batch begin, and what follows from it."""

    def __init__(self, starts: torch.Tensor, longest: int) -> None:
        """``starts`` int32 [texts + 1], on the host: text t has the tokens [starts[t], starts[t + 1])."""
        self.lengths: list[int] = starts.diff().tolist()
        self.longest = longest
        self.host_starts = starts
        owner = torch.repeat_interleave(torch.arange(len(self.lengths)), starts.diff())
        self.host_positions = torch.arange(int(starts[-1])) - starts[:-1].long()[owner]

    def to(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(starts int32 [texts + 1], positions int64 [tokens])"""
        return self.host_starts.to(device), self.host_positions.to(device)
