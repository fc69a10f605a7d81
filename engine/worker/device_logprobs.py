"""Log-probabilities on a device, and their way to the host."""

from collections.abc import Sequence

import torch

from stentor.kernels import sampling

from ..models.decoder import Decoder
from .device import Device
from .logprobs import LogprobTensors
from .pending import PromptPart
from .pinned import StepMemory
from .rows import PromptWork


class LogprobReader:
    """What it returns is pinned memory of the step, filled once the step is done."""

    def __init__(self, model: Decoder, device: Device) -> None:
        self._model = model
        self._device = device

    def read(self, logits: torch.Tensor, tokens: torch.Tensor, top: int, memory: StepMemory) -> LogprobTensors:
        """Queues the log-probabilities of ``tokens`` [n] under ``logits`` [n, vocabulary], and their copies."""
        rows = torch.arange(len(tokens), device=logits.device)
        values, ranks, best, best_values = sampling.logprobs(logits, rows, tokens, top)
        return (
            self._fetch(values, memory),
            self._fetch(ranks, memory),
            self._fetch(best, memory),
            self._fetch(best_values, memory),
        )

    def read_prompts(
        self, parts: Sequence[PromptWork], hidden: torch.Tensor, targets: torch.Tensor, memory: StepMemory
    ) -> list[PromptPart]:
        """Queues all of ``parts``; ``hidden`` [tokens, hidden] is of the step, ``targets`` their tokens end to end."""
        found = []
        at = 0
        for part in parts:
            pieces = []
            for first, tokens in part.pieces():
                logits = self._model.logits(hidden[first : first + len(tokens)])
                pieces.append(self.read(logits, targets[at : at + len(tokens)], part.top, memory))
                at += len(tokens)
            found.append(PromptPart(part.slot, part.start, part.tokens, part.top, pieces))
        return found

    def _fetch(self, source: torch.Tensor, memory: StepMemory) -> torch.Tensor:
        target = memory.pinned(source.numel(), source.dtype).view(source.shape)
        if source.numel():
            self._device.download(target, source)
        return target
