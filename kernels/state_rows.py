"""The slots of recurrent state of a batch's rows, an argument of all recurrent and convolutional operations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .guards import describe

STATE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of states, in the order of the native functions' numbers."""


@dataclass(frozen=True)
class StateRows:
    """The rows of a batch, one after another, and the slots of their states.

    A row without tokens copies its state from the slot it reads to the slot it writes. No two rows write one slot, and
    no row writes a slot that another row reads.
    """

    cu_seqlens: Tensor
    """int32 [rows + 1]: row r has the tokens [cu_seqlens[r], cu_seqlens[r + 1]). It begins with 0 and ends with the
    number of tokens."""
    reads: Tensor
    """int64 [rows]: the slot of the row's state before the step; -1: the state begins as zeros. Rows may share a
    slot."""
    writes: Tensor
    """int64 [rows]: the slot for the row's state after the step, which may be the one it reads; -1: none, for padding
    rows."""
    longest: int
    """An upper bound of the tokens per row. The host chooses kernels by it, so that nothing is read from the device."""

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
        """``cu_seqlens``, ``reads`` and ``writes``, in the order of the Triton kernels' arguments."""
        return self.cu_seqlens, self.reads, self.writes

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """The addresses of ``cu_seqlens``, ``reads`` and ``writes``, and the number of rows, for native functions."""
        return self.cu_seqlens.data_ptr(), self.reads.data_ptr(), self.writes.data_ptr(), len(self)

    def check(self, operation: str, state: Tensor, shape: tuple[int, ...]) -> None:
        """Raises ValueError unless the tensors have the documented shapes and dtypes, and ``state`` is contiguous
        [slots, *shape] of one of :data:`STATE_DTYPES` on their device.

        The values in the tensors are not checked.
        """
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
        """Returns the native functions' number for the dtype of ``state``."""
        return STATE_DTYPES.index(state.dtype)

    def run(self, state: Tensor, tokens: int, operation: str) -> Iterator[tuple[slice, Tensor]]:
        """Yields each row's tokens and a float32 copy of its state [...], which the caller updates in place.

        The copy is then written to the row's slot of ``state`` [slots, ...].

        Raises:
            IndexError: tokens or slots out of range; nothing is written then.
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
        """Returns the error that says which row's tokens or slots are out of range."""
        start, end = self.cu_seqlens[row : row + 2].tolist()
        read, write = int(self.reads[row]), int(self.writes[row])
        return IndexError(
            f"{operation}: row {row} has the tokens [{start}, {end}) of {tokens}, reads slot {read} and writes slot "
            f"{write} of {slots}"
        )
