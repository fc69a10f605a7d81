"""A launched step, and how its result is read once the device has done it."""

import msgspec
import torch

from stentor.protocols.ipc.steps import PromptLogprobs, RowFault, StepPlan, TokenLogprobs

from ..device.device import Mark
from ..device.pinned import StepMemory
from ..sampling.logprobs import Alternatives, LogprobTensors, logprob_entries


class PromptPart(msgspec.Struct, frozen=True):
    """Log-probabilities of prompt tokens of one row, being copied to pinned memory."""

    slot: int
    start: int
    tokens: list[int]
    asked: Alternatives
    """Of each."""
    found: list[LogprobTensors]
    """Pieces in order."""

    def read(self) -> PromptLogprobs:
        positions: list[TokenLogprobs] = []
        for piece in self.found:
            tokens = self.tokens[len(positions) : len(positions) + len(piece[0])]
            positions += logprob_entries(tokens, [self.asked] * len(tokens), piece)
        return PromptLogprobs(self.slot, self.start, positions)


class Pending(msgspec.Struct, frozen=True):
    """An immutable launched step; nobody else reads its buffers."""

    plan: StepPlan
    launched: float
    """``time.perf_counter()`` at its launch."""
    mark: Mark
    sampled_token_ids: torch.Tensor
    """int64, pinned: tokens in the order of draws."""
    places: list[int]
    """The draw of each row that samples, in the plan's order."""
    asked: list[Alternatives | None]
    """Alternatives that each of them asked for; None: no log-probability."""
    found: LogprobTensors | None
    """Log-probabilities of the rows that asked, in the plan's order."""
    prompts: list[PromptPart]
    memory: StepMemory
    """Buffers of the step, released once its result is read."""
    faults: list[RowFault] = msgspec.field(default_factory=list)
    """Rows with faulty media."""

    def tokens(self) -> list[int]:
        """The sampled tokens; call it once the mark is reached."""
        sampled_token_ids = self.sampled_token_ids.tolist()
        return [sampled_token_ids[place] for place in self.places]

    def logprobs(self, tokens: list[int]) -> list[TokenLogprobs | None] | None:
        """Log-probabilities of the sampled tokens; None if no row asked."""
        if self.found is None:
            return None
        asked = {place: each for place, each in enumerate(self.asked) if each is not None}
        entries: list[TokenLogprobs | None] = [None] * len(tokens)
        read = logprob_entries([tokens[place] for place in asked], list(asked.values()), self.found)
        for place, entry in zip(asked, read, strict=True):
            entries[place] = entry
        return entries
