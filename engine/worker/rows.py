"""What a worker remembers of each row between steps: its tokens and its block table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

EXPANDED_FROM: Final = 32
"""Tokens of a prompt from which its products are best made with codes expanded to bfloat16
(:attr:`stentor.kernels.forward.Forward.expands`). It is of a prompt, not of a step: results depend on it, and a token's
must not on what is computed beside it."""
_LOGIT_ROWS: Final = 64
"""Prompt positions whose logits are held at once: a vocabulary of 128k in float32 is then 32 MiB."""
Int64 = npt.NDArray[np.int64]


def with_forks(plan: StepPlan) -> StepPlan:
    """The same step, with every row that enters among ``new``; rows of one request share their parameters."""
    if not plan.forks:
        return plan
    new = [*plan.new]
    for fork in plan.forks:
        origin = plan.new[fork.origin]
        tokens = origin.tokens[: origin.prompt_len] + fork.outputs
        own = {"slot": fork.slot, "seed": fork.seed, "blocks": fork.blocks, "state": fork.state}
        new.append(msgspec.structs.replace(origin, tokens=tokens, **own))
    return msgspec.structs.replace(plan, new=new, forks=[])


@dataclass(frozen=True)
class PromptWork:
    """Prompt tokens of one row that a step says something about."""

    slot: int
    start: int
    tokens: list[int]
    top: int
    """How many alternatives."""
    first: int
    """Index, in the step's batch, of the position before ``start``."""

    def pieces(self) -> Iterator[tuple[int, list[int]]]:
        """Some of the tokens, and the index of the position before the first of them: as many as have room."""
        for offset in range(0, len(self.tokens), _LOGIT_ROWS):
            yield self.first + offset, self.tokens[offset : offset + _LOGIT_ROWS]


@dataclass(frozen=True)
class Layout:
    """The tokens of some rows, laid end to end."""

    slots: Int64
    """[rows]"""
    seq_lens: Int64
    """[rows]: tokens in the cache after the step."""
    lengths: Int64
    """[rows]: tokens of the step."""
    query_start: npt.NDArray[np.int32]
    """[rows + 1]"""
    token_slots: Int64
    """[tokens]: the row of each."""
    positions: Int64
    """[tokens]"""


def lay_out(rows: Sequence[RowStep]) -> Layout:
    count = len(rows)
    slots = np.fromiter((row.slot for row in rows), np.int64, count)
    begin = np.fromiter((row.start for row in rows), np.int64, count)
    lengths = np.fromiter((row.count for row in rows), np.int64, count)
    query_start = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start[1:])
    if query_start[-1] == count:
        return Layout(slots, begin + lengths, lengths, query_start, slots, begin)
    owner = np.repeat(np.arange(count), lengths)
    positions = np.arange(query_start[-1], dtype=np.int64) - query_start[:-1][owner] + begin[owner]
    return Layout(slots, begin + lengths, lengths, query_start, slots[owner], positions)


class RowTable:
    """Persistent arrays, one line per slot. A slot's line is whole from ``add`` to ``remove``.

    Blocks come for all groups of layers, those of one after another.
    """

    def __init__(self, slots: int, max_model_len: int, block_size: int, groups: int = 1) -> None:
        """``groups`` of layers have block tables of their own."""
        self.block_size = block_size
        # one place more than a sequence can have: the token drawn after a sequence of full length goes there
        self.tokens: Int64 = np.zeros((slots, max_model_len + 1), dtype=np.int64)
        self.blocks: npt.NDArray[np.int32] = np.zeros((groups, slots, -(-max_model_len // block_size)), dtype=np.int32)
        """[groups, slots, blocks]"""
        self.known: Int64 = np.zeros(slots, dtype=np.int64)
        """Tokens that a row entered with; 0 while nobody has the slot."""
        self.num_sampled: Int64 = np.zeros(slots, dtype=np.int64)
        """Tokens drawn since; for a worker whose ``tokens`` lag behind its device."""
        self._block_count = [0] * slots
        self._prompt_len = [0] * slots
        self._prompt_logprobs: list[int | None] = [None] * slots
        self.adapters = [-1] * slots
        """The slot of each row's adapter, below 0 for none."""

    def enter(self, plan: StepPlan) -> None:
        """Takes over what the plan changes; rows that it frees have been removed."""
        for new in plan.new:
            self.add(new)
        for row in plan.rows:
            if row.new_blocks:
                self.extend(row.slot, row.new_blocks)

    def add(self, row: NewRow) -> None:
        self.tokens[row.slot, : len(row.tokens)] = row.tokens
        count = len(row.blocks) // len(self.blocks)
        self.blocks[:, row.slot, :count] = np.reshape(row.blocks, (len(self.blocks), count))
        self.known[row.slot] = len(row.tokens)
        self.num_sampled[row.slot] = 0
        self._block_count[row.slot] = count
        self._prompt_len[row.slot] = row.prompt_len
        self._prompt_logprobs[row.slot] = row.params.prompt_logprobs
        self.adapters[row.slot] = row.adapter

    def remove(self, slot: int) -> None:
        self._block_count[slot] = 0
        self.known[slot] = 0
        self._prompt_logprobs[slot] = None
        self.adapters[slot] = -1

    def extend(self, slot: int, blocks: list[int]) -> None:
        first = self._block_count[slot]
        count = first + len(blocks) // len(self.blocks)
        self.blocks[:, slot, first:count] = np.reshape(blocks, (len(self.blocks), count - first))
        self._block_count[slot] = count

    def block_count(self, slot: int) -> int:
        """How long a row's block table is."""
        return self._block_count[slot]

    def kv_slots(self, layout: Layout) -> Int64:
        """Where the keys of each token go, [groups, tokens]."""
        blocks = self.blocks[:, layout.token_slots, layout.positions // self.block_size].astype(np.int64)
        return np.ascontiguousarray(blocks * self.block_size + layout.positions % self.block_size)

    def any_adapted(self, rows: Sequence[RowStep]) -> bool:
        """Whether any of them has an adapter."""
        return any(self.adapters[row.slot] >= 0 for row in rows)

    def expands(self, row: RowStep) -> bool:
        """Whether the row's products are best made with codes expanded, see
        :data:`EXPANDED_FROM`; all that it computes is of the prompt, or behind it."""
        return not self.drawn(row) and self._prompt_len[row.slot] >= EXPANDED_FROM

    def drawn(self, row: RowStep) -> bool:
        """Whether all that it computes is behind its prompt, be it for the first time or behind a worker's death."""
        return row.start >= self._prompt_len[row.slot]

    def want_prompt_logprobs(self, rows: Sequence[RowStep]) -> bool:
        return any(self._prompt_logprobs[row.slot] is not None for row in rows)

    def prompt_work(self, rows: Sequence[RowStep], starts: Sequence[int]) -> list[PromptWork]:
        """What a step says about prompt tokens, for the rows that asked; each begins in the batch where ``starts``
        says."""
        found = []
        for row, start in zip(rows, starts, strict=True):
            top, prompt_len = self._prompt_logprobs[row.slot], self._prompt_len[row.slot]
            if top is None or row.start + 1 >= prompt_len:
                continue
            following = self.tokens[row.slot, row.start + 1 : min(row.start + row.count + 1, prompt_len)]
            found.append(PromptWork(row.slot, row.start + 1, following.tolist(), top, start))
        return found
