"""Which rows of a batch have which adapter."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_P, _I = ctypes.c_void_p, ctypes.c_int64


class RowsStruct(ctypes.Structure):
    """``Rows`` of low_rank.h."""

    _fields_ = (("groups", _I), ("slots", _P), ("starts", _P), ("rows", _P))


def group_rows(slots: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int32]:
    """Returns the numbers of a :class:`RowGroups`, from each row's slot among ``count`` slots, -1 for none."""
    order = np.argsort(slots, kind="stable")
    starts = np.searchsorted(slots[order], np.arange(count + 1))
    return np.concatenate((slots, order, starts)).astype(np.int32)


def grouped_size(rows: int, count: int) -> int:
    """Returns the length of the result of :func:`group_rows`."""
    return 2 * rows + count + 1


@dataclass(frozen=True)
class RowGroups:
    """Rows grouped by the slot of their adapter, on the device; the host reads none of it."""

    slots: Tensor
    """int32 [rows]: -1 for none."""
    order: Tensor
    """int32 [rows]: the rows, sorted by slot."""
    starts: Tensor
    """int32 [slots + 1]: the rows of slot s are ``order[starts[s]:starts[s + 1]]``."""

    @classmethod
    def of(cls, numbers: Tensor, rows: int) -> "RowGroups":
        """Splits the result of :func:`group_rows`, copied to the device."""
        return cls(*numbers.split([rows, rows, len(numbers) - 2 * rows]))

    @property
    def count(self) -> int:
        """The number of slots."""
        return len(self.starts) - 1


@dataclass(frozen=True)
class AdapterRows:
    """The rows of a batch that have adapters, sorted by adapter."""

    adapters: tuple[int, ...]
    """Their slots, ascending; only those that the host must know."""
    rows: Tensor
    """int64 [n]"""
    starts: tuple[int, ...]
    """The rows of adapter a are [starts[a], starts[a + 1]) of ``rows``."""
    slots: Tensor
    """``adapters`` as int64 on the CPU."""
    offsets: Tensor
    """``starts`` as int64 on the CPU."""
    groups: RowGroups | None = None
    """All rows of the batch, for products whose adapters are in a table on the device."""

    @classmethod
    def of(
        cls, adapters: Sequence[int], lengths: Sequence[int], device: torch.device, slots: int = 0
    ) -> "AdapterRows | None":
        """Returns the rows with adapters; None if no sequence has one.

        ``adapters``: of each sequence, below 0 for none. ``lengths``: how many rows each has, one sequence after
        another. ``slots``: the slots of tables on the device, if any.
        """
        present = sorted({adapter for adapter in adapters if adapter >= 0})
        if not present:
            return None
        of_row = torch.repeat_interleave(torch.tensor(adapters), torch.tensor(lengths))
        order = torch.argsort(of_row, stable=True)
        counts = [int((of_row == adapter).sum()) for adapter in present]
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        rows = order[len(of_row) - starts[-1] :].contiguous()
        groups = None
        if slots:
            numbers = torch.from_numpy(group_rows(of_row.numpy(), slots)).to(device)
            groups = RowGroups.of(numbers, len(of_row))
        return cls(tuple(present), rows.to(device), tuple(starts), torch.tensor(present), torch.tensor(starts), groups)

    @classmethod
    def none(cls, groups: RowGroups | None = None) -> "AdapterRows":
        """Returns a value without any row that the host must know."""
        nothing = torch.empty(0, dtype=torch.int64)
        return cls((), nothing, (0,), nothing, torch.zeros(1, dtype=torch.int64), groups)

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """Yields each adapter and its rows."""
        for adapter, first, end in zip(self.adapters, self.starts, self.starts[1:], strict=False):
            yield adapter, self.rows[first:end]

    @property
    def struct(self) -> RowsStruct:
        """The struct that the native code takes, for rows on the CPU; it does not keep the tensors alive."""
        pointers = (each.data_ptr() for each in (self.slots, self.offsets, self.rows))
        return RowsStruct(len(self.adapters), *pointers)
