"""Where the rows of a batch keep recurrent state: what the operations of recurrent and convolutional mixers share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .guards import describe

STATE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What states may be kept in, as native functions number them."""


@dataclass(frozen=True)
class StateRows:
    """The rows of a batch, one after another, and the slots of their states.

    A row without tokens carries its state from the slot that it reads to the one that it writes. No two rows write
    one slot, and no row writes a slot that another reads.
    """

    cu_seqlens: Tensor
    """int32 [rows + 1]: row r has the tokens [cu_seqlens[r], cu_seqlens[r + 1]). It begins with 0 and ends with the
    number of tokens."""
    reads: Tensor
    """int64 [rows]: the slot with the row's state before the step; -1: it begins with zeros. Rows may share one."""
    writes: Tensor
    """int64 [rows]: the slot that gets its state after the step, which may be the one it reads; -1: none, for rows
    that only fill up a batch."""
    longest: int
    """No row has more tokens. It decides on the host how kernels run, so that nothing is read from the device."""

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        reads: Sequence[int],
        writes: Sequence[int],
        device: torch.device | str | None = None,
    ) -> "StateRows":
        """Rows of ``lengths`` tokens each."""
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        return cls(
            torch.tensor(starts, dtype=torch.int32, device=device),
            torch.tensor(reads, dtype=torch.int64, device=device),
            torch.tensor(writes, dtype=torch.int64, device=device),
            max(lengths, default=0),
        )

    def __len__(self) -> int:
        return self.reads.shape[0]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """For Triton kernels, in their order."""
        return self.cu_seqlens, self.reads, self.writes

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """For native functions: where ``cu_seqlens``, ``reads`` and ``writes`` lie, and how many rows there are."""
        return self.cu_seqlens.data_ptr(), self.reads.data_ptr(), self.writes.data_ptr(), len(self)

    def check(self, operation: str, state: Tensor, shape: tuple[int, ...]) -> None:
        """Raises ValueError unless these are rows, and ``state`` is contiguous [slots, *shape] of one of
        :data:`STATE_DTYPES` on their device. What the tensors hold is not looked at."""
        starts, reads, writes = self.cu_seqlens, self.reads, self.writes
        if starts.dtype != torch.int32 or starts.shape != (len(self) + 1,) or not starts.is_contiguous():
            raise ValueError(f"{operation}: cu_seqlens {describe(starts)} must be contiguous int32 [{len(self) + 1}]")
        for name, slots in (("reads", reads), ("writes", writes)):
            if slots.dtype != torch.int64 or slots.shape != (len(self),) or not slots.is_contiguous():
                raise ValueError(f"{operation}: {name} {describe(slots)} must be contiguous int64 [{len(self)}]")
        if not starts.device == reads.device == writes.device == state.device:
            where = f"{starts.device}, {reads.device} and {writes.device}"
            raise ValueError(
                f"{operation}: cu_seqlens, reads and writes are on {where}, the state is on {state.device}"
            )
        fits = state.dim() > 0 and state.shape[1:] == shape and state.dtype in STATE_DTYPES
        if not fits or not state.is_contiguous():
            wanted = f"[slots, {', '.join(map(str, shape))}] of float32, bfloat16 or float16"
            raise ValueError(f"{operation}: state {describe(state)} must be contiguous {wanted}")

    def state_dtype(self, state: Tensor) -> int:
        """The number that native functions know the dtype of ``state`` by."""
        return STATE_DTYPES.index(state.dtype)

    def run(self, state: Tensor, tokens: int, operation: str) -> Iterator[tuple[slice, Tensor]]:
        """Of each row its tokens and a float32 copy of its state [...], to be updated in place by the one who iterates:
        it goes to the row's slot of ``state`` [slots, ...] afterwards.

        Raises:
            IndexError: tokens or slots that are not there; nothing is written then.
        """
        starts, reads, writes = self.cu_seqlens.tolist(), self.reads.tolist(), self.writes.tolist()
        for row in range(len(self)):
            if not (0 <= starts[row] <= starts[row + 1] <= tokens) or not (
                -1 <= reads[row] < len(state) and -1 <= writes[row] < len(state)
            ):
                raise self.misfit(row, len(state), tokens, operation)
        for row in range(len(self)):
            read, write = reads[row], writes[row]
            before = state[read].float().clone() if read >= 0 else torch.zeros_like(state[0], dtype=torch.float32)
            yield slice(starts[row], starts[row + 1]), before
            if write >= 0:
                state[write] = before.to(state.dtype)

    def misfit(self, row: int, slots: int, tokens: int, operation: str) -> IndexError:
        """The error that says which row names tokens or slots that are not there."""
        start, end = self.cu_seqlens[row : row + 2].tolist()
        read, write = int(self.reads[row]), int(self.writes[row])
        return IndexError(
            f"{operation}: row {row} has the tokens [{start}, {end}) of {tokens}, reads slot {read} and writes slot "
            f"{write} of {slots}"
        )
