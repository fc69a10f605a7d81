"""What a worker remembers of each row between steps: its tokens and its block table."""

import msgspec
import numpy as np
import numpy.typing as npt

from stentor.protocols.ipc.steps import NewRow, StepPlan


def with_forks(plan: StepPlan) -> StepPlan:
    """The same step, with every row that enters among ``new``; rows of one request share their parameters."""
    if not plan.forks:
        return plan
    new = [*plan.new]
    for fork in plan.forks:
        origin = plan.new[fork.origin]
        tokens = origin.tokens[: origin.prompt_len] + fork.outputs
        new.append(msgspec.structs.replace(origin, slot=fork.slot, tokens=tokens, seed=fork.seed, blocks=fork.blocks))
    return msgspec.structs.replace(plan, new=new, forks=[])


class RowTable:
    """Persistent arrays, one line per slot. A slot's line is whole from ``add`` to ``remove``.

    Blocks come for all groups of layers, those of one after another.
    """

    def __init__(self, slots: int, max_model_len: int, block_size: int, groups: int = 1) -> None:
        """``groups`` of layers have block tables of their own."""
        self.block_size = block_size
        # one place more than a sequence can have: the token drawn after a sequence of full length goes there
        self.tokens: npt.NDArray[np.int64] = np.zeros((slots, max_model_len + 1), dtype=np.int64)
        self.blocks: npt.NDArray[np.int32] = np.zeros((groups, slots, -(-max_model_len // block_size)), dtype=np.int32)
        """[groups, slots, blocks]"""
        self.known: npt.NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        """Tokens that a row entered with; 0 while nobody has the slot."""
        self.num_sampled: npt.NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        """Tokens drawn since; for a worker whose ``tokens`` lag behind its device."""
        self._block_count = [0] * slots
        self._prompt_len = [0] * slots
        self.prompt_logprobs: list[int | None] = [None] * slots

    def add(self, row: NewRow) -> None:
        self.tokens[row.slot, : len(row.tokens)] = row.tokens
        count = len(row.blocks) // len(self.blocks)
        self.blocks[:, row.slot, :count] = np.reshape(row.blocks, (len(self.blocks), count))
        self.known[row.slot] = len(row.tokens)
        self.num_sampled[row.slot] = 0
        self._block_count[row.slot] = count
        self._prompt_len[row.slot] = row.prompt_len
        self.prompt_logprobs[row.slot] = row.params.prompt_logprobs

    def remove(self, slot: int) -> None:
        self._block_count[slot] = 0
        self.known[slot] = 0
        self.prompt_logprobs[slot] = None

    def extend(self, slot: int, blocks: list[int]) -> None:
        first = self._block_count[slot]
        count = first + len(blocks) // len(self.blocks)
        self.blocks[:, slot, first:count] = np.reshape(blocks, (len(self.blocks), count - first))
        self._block_count[slot] = count

    def block_count(self, slot: int) -> int:
        """How long a row's block table is."""
        return self._block_count[slot]

    def prompt_len(self, slot: int) -> int:
        return self._prompt_len[slot]
