"""A worker's state of each row between steps: its tokens and its block table."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

EXPANDED_FROM: Final = 32
"""Prompt length from which products expand coded weights to bfloat16 (:attr:`stentor.kernels.forward.Forward.expands`).

It depends on the prompt, not on the step: results differ, and a token's must not depend on the rest of the batch.
"""
_ROWS_OF_CHUNK: Final = 16
"""Rows that pay for an expansion: weights of which the largest chunk of a prompt has fewer never expand."""
_LOGIT_ROWS: Final = 64
"""Prompt positions whose logits are held at once: 32 MiB of float32 for a vocabulary of 128k."""
Int64 = npt.NDArray[np.int64]


class RowLimits(msgspec.Struct, frozen=True):
    """How many rows a worker holds, and what each may become."""

    slots: int
    max_model_len: int
    block_size: int
    chunk: int = 0
    """Most prompt tokens of a step; 0: a whole prompt."""


def with_forks(plan: StepPlan) -> StepPlan:
    """A copy of the step with every entering row in ``new``; rows of one request share their parameters."""
    if not plan.forks:
        return plan
    new = [*plan.new]
    for fork in plan.forks:
        origin = plan.new[fork.origin]
        tokens = origin.tokens[: origin.prompt_len] + fork.outputs
        own = {"slot": fork.slot, "seed": fork.seed, "blocks": fork.blocks, "state": fork.state}
        new.append(msgspec.structs.replace(origin, tokens=tokens, **own))
    return msgspec.structs.replace(plan, new=new, forks=[])


class PromptWork(msgspec.Struct, frozen=True):
    """Prompt tokens of one row whose log-probabilities are wanted."""

    slot: int
    start: int
    tokens: list[int]
    top: int
    """Number of alternatives."""
    logits: bool
    """Logits in place of log-probabilities."""
    first: int
    """Index, in the step's batch, of the position before ``start``."""

    def pieces(self) -> Iterator[tuple[int, list[int]]]:
        """The tokens in pieces of limited size, each with the index of the position before it."""
        for offset in range(0, len(self.tokens), _LOGIT_ROWS):
            yield self.first + offset, self.tokens[offset : offset + _LOGIT_ROWS]


class Layout(msgspec.Struct, frozen=True):
    """The tokens of some rows, concatenated."""

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
    """Persistent arrays, one line a slot, valid from ``add`` to ``remove``.

    Blocks come for all groups of layers, concatenated.
    """

    def __init__(self, slots: int, max_model_len: int, block_size: int, groups: int = 1, chunk: int = 0) -> None:
        """``groups``: cache groups with their own block tables; ``chunk``: see :class:`RowLimits`."""
        self.block_size = block_size
        self._chunk = chunk or max_model_len
        # one more than a sequence can have: the token sampled after a sequence of full length
        self.tokens: Int64 = np.zeros((slots, max_model_len + 1), dtype=np.int64)
        self.blocks: npt.NDArray[np.int32] = np.zeros((groups, slots, -(-max_model_len // block_size)), dtype=np.int32)
        """[groups, slots, blocks]"""
        self.known: Int64 = np.zeros(slots, dtype=np.int64)
        """Tokens that a row entered with; 0 while the slot is free."""
        self.num_sampled: Int64 = np.zeros(slots, dtype=np.int64)
        """Tokens sampled since, for a worker whose ``tokens`` lag behind its device."""
        self._block_count = [0] * slots
        self._prompt_len = [0] * slots
        self._prompt_logprobs: list[int | None] = [None] * slots
        self._prompt_logits = [False] * slots
        self.adapters = [-1] * slots
        """Adapter slot of each row; negative: none."""

    def enter(self, plan: StepPlan) -> None:
        """Apply a plan; freed rows have been removed."""
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
        self._prompt_logits[row.slot] = row.params.logits
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
        """Length of a row's block table."""
        return self._block_count[slot]

    def kv_slots(self, layout: Layout) -> Int64:
        """The KV slot of each token, [groups, tokens]."""
        blocks = self.blocks[:, layout.token_slots, layout.positions // self.block_size].astype(np.int64)
        return np.ascontiguousarray(blocks * self.block_size + layout.positions % self.block_size)

    def any_adapted(self, rows: Sequence[RowStep]) -> bool:
        """Whether any of these rows has an adapter."""
        return any(self.adapters[row.slot] >= 0 for row in rows)

    def expands(self, row: RowStep, tokens_per_row: float = 1.0) -> bool:
        """Whether the row's products should expand coded weights, see :data:`EXPANDED_FROM`.

        All of its positions are in the prompt, or all behind it. Of ``tokens_per_row`` tokens the weights meet one.
        """
        long = self._prompt_len[row.slot] >= EXPANDED_FROM * tokens_per_row
        return long and self._chunk >= _ROWS_OF_CHUNK * tokens_per_row and not self.drawn(row)

    def drawn(self, row: RowStep) -> bool:
        """Whether all of its positions are behind the prompt, also when they are computed again after a worker's
        death."""
        return row.start >= self._prompt_len[row.slot]

    def prompt_len(self, row: RowStep) -> int:
        """Tokens of the row's prompt, also when its answer is computed again."""
        return self._prompt_len[row.slot]

    def want_prompt_logprobs(self, rows: Sequence[RowStep]) -> bool:
        return any(self._prompt_logprobs[row.slot] is not None for row in rows)

    def prompt_work(self, rows: Sequence[RowStep], starts: Sequence[int]) -> list[PromptWork]:
        """The prompt tokens whose log-probabilities this step computes; ``starts``: each row's first index in the
        batch."""
        found = []
        for row, start in zip(rows, starts, strict=True):
            top, prompt_len = self._prompt_logprobs[row.slot], self._prompt_len[row.slot]
            if top is None or row.start + 1 >= prompt_len:
                continue
            following = self.tokens[row.slot, row.start + 1 : min(row.start + row.count + 1, prompt_len)]
            logits = self._prompt_logits[row.slot]
            found.append(PromptWork(row.slot, row.start + 1, following.tolist(), top, logits, start))
        return found
