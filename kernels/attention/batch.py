"""What the attention of one step needs to know about its sequences."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..guards import describe
from ..launching.launch import cdiv

_NO_MEMORY = -2
"""The code that native functions return if they cannot plan a batch."""
MAX_DECODE_QUERY_LEN = 8
"""The most new tokens per sequence of the decode rows."""
LENGTHS_ALIKE = 128
"""Launches change when the longest sequence passes a multiple of this."""


@dataclass(frozen=True)
class AttentionBatch:
    """S sequences whose T new tokens are one after another in the batch.

    Token i of the n new tokens of sequence s has position ``seq_lens[s] - n + i`` and sees the keys of positions [0,
    position]. All tensors are contiguous and on one device.

    Decode rows come first. Each has the same number of new tokens, known on the host, or up to as many if they are
    ``ragged``. The numbers of tokens of the other sequences, which may be 0, are read on the device, so that a launch
    can be replayed with other lengths. A sequence with ``seq_lens`` 0 is padding: its tokens have slots like any other,
    in a block that nobody reads, and their output is zeros. Only the Triton and the reference variants take padding.

    The lengths must not change while a batch is in use, except in replays of a graph that holds all of its operations:
    layers share what the first of them planned.

    Raises:
        ValueError: a dtype, a shape or a number of decode rows that does not fit.
    """

    query_start: Tensor
    """[S + 1] int32: tokens [query_start[s], query_start[s + 1]) are those of sequence s."""
    seq_lens: Tensor
    """[S] int32: the keys visible to the last token of each sequence, itself included."""
    block_tables: Tensor
    """[S, max_blocks] int32: block of the keys [i * block_size, (i + 1) * block_size); unused entries are ignored."""
    slots: Tensor
    """[T] int64: the slot that each token's key and value are written to."""
    max_query_len: int
    """The most new tokens of one sequence."""
    max_seq_len: int
    """The largest of ``seq_lens``."""
    decode_rows: int = 0
    """The number of first sequences that have ``decode_query_len`` new tokens each."""
    decode_query_len: int = 1
    """From 1 to 8."""
    ragged_tokens: int | None = None
    """If given, decode rows have up to ``decode_query_len`` new tokens each, and this many in all."""

    def __post_init__(self) -> None:
        sequences = self.seq_lens.shape[0]
        checks = (
            ("query_start", self.query_start, torch.int32, (sequences + 1,)),
            ("seq_lens", self.seq_lens, torch.int32, (sequences,)),
            ("block_tables", self.block_tables, torch.int32, (sequences, self.block_tables.shape[-1])),
            ("slots", self.slots, torch.int64, (self.slots.shape[0],)),
        )
        for name, tensor, dtype, shape in checks:
            if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
                raise ValueError(f"AttentionBatch: {name} {describe(tensor)} must be contiguous {dtype} {shape}")
        if not 1 <= self.decode_query_len <= MAX_DECODE_QUERY_LEN:
            raise ValueError(
                f"AttentionBatch: decode_query_len must be 1 to {MAX_DECODE_QUERY_LEN}, not {self.decode_query_len}"
            )
        if not 0 <= self.decode_rows <= sequences or self.decode_tokens > self.num_tokens:
            raise ValueError(
                f"AttentionBatch: {self.decode_rows} decode rows of {self.decode_query_len} tokens do not fit "
                f"{sequences} sequences of {self.num_tokens} tokens"
            )
        if self.ragged_tokens is not None and not 0 <= self.ragged_tokens <= self.decode_rows * self.decode_query_len:
            raise ValueError(
                f"AttentionBatch: {self.decode_rows} decode rows of up to {self.decode_query_len} tokens cannot have "
                f"{self.ragged_tokens}"
            )

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """The addresses of the lengths and tables, and the number of sequences, for native functions."""
        tables = self.block_tables.data_ptr()
        return self.query_start.data_ptr(), self.seq_lens.data_ptr(), tables, self.num_sequences

    def check_fault(self, fault: int, operation: str, what: str = "the lengths or the block table") -> None:
        """Raises the error that a native function's code stands for: MemoryError, or IndexError naming a sequence whose
        ``what`` are out of range."""
        if fault == _NO_MEMORY:
            raise MemoryError(
                f"{operation}: no room to plan {self.num_tokens} tokens of {self.num_sequences} sequences"
            )
        if fault >= 0:
            raise IndexError(f"{operation}: {what} of sequence {fault} lead outside the batch or the cache")

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that launches for the batch depend on."""
        tables = self.block_tables.shape[1]
        decodes = self.decode_rows, self.decode_query_len, self.decode_tokens, self.ragged
        return self.num_sequences, self.num_tokens, tables, *decodes, self.bound, self.whole_prompt

    @cached_property
    def plans(self) -> dict[Hashable, Tensor]:
        """How launches for decode rows split keys, by what that depends on apart from ``seq_lens``. The first layer of
        its kind plans on the device, and later layers reuse the plan."""
        return {}

    @property
    def bound(self) -> int:
        """An upper bound of all lengths, the same for many steps."""
        return cdiv(self.max_seq_len, LENGTHS_ALIKE) * LENGTHS_ALIKE

    @property
    def whole_prompt(self) -> int:
        """The tokens of the one sequence after the decode rows, if it surely has no earlier keys; else 0.

        It reads host numbers only. While a graph is captured these are bounds, and it is 0.
        """
        tokens = self.num_tokens - self.decode_tokens
        alone = self.num_sequences == self.decode_rows + 1
        return tokens if alone and tokens == self.max_query_len == self.max_seq_len else 0

    @property
    def num_sequences(self) -> int:
        return self.seq_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        return self.slots.shape[0]

    @property
    def ragged(self) -> bool:
        """Whether only the device knows how many tokens each decode row has."""
        return self.ragged_tokens is not None

    @property
    def decode_tokens(self) -> int:
        return self.decode_rows * self.decode_query_len if self.ragged_tokens is None else self.ragged_tokens
