"""Compares what a candidate computes with what it should, before the tuner may choose it.

Block sizes change the order of sums, and some choices round more. What they must not do is to leave out a tile, read
another row, or race: a wrong element is then off by about the magnitude of its row. So each element may be off by
:data:`OF_ROW` of the root mean square of its row, and all by :data:`OF_ALL`.
"""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

OF_ROW: Final = 0.25
OF_ALL: Final = 0.025
OF_INTEGERS: Final = 0.01
"""The most integers that may differ: nearly equal scores may be ranked otherwise."""
_STEPS: Final = {torch.float8_e4m3fn: 0.125, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Of a number, the distance to the next one of its dtype."""
_PART: Final = 1 << 26
"""About how many elements are compared at once."""


def difference(expected: object, made: object) -> str | None:
    """Returns how the tensors within ``made`` differ from those within ``expected``, as a clause; None if they agree.

    Rows are those of the last dim. Integers of two dims are sets by row, others go by position.
    """
    pairs = list(zip(_tensors(expected), _tensors(made), strict=True))
    if not pairs:
        return "the call returns no tensor"
    for should, is_ in pairs:
        if should.shape != is_.shape or should.dtype != is_.dtype:
            return f"it is {list(is_.shape)} {is_.dtype}, not {list(should.shape)} {should.dtype}"
        exact = not should.dtype.is_floating_point
        found = _of_integers(should, is_) if exact else _of_floats(should, is_)
        if found is not None:
            return found
    return None


def _tensors(result: object) -> Iterator[Tensor]:
    return (each for each in tree_iter(result) if isinstance(each, Tensor) and each.numel())


def _of_integers(expected: Tensor, made: Tensor) -> str | None:
    if expected.dim() == 2 and expected.dtype in (torch.int32, torch.int64):
        row = torch.arange(len(expected), device=expected.device).unsqueeze(1) << 32
        same = torch.isin(made.long() + row, expected.long() + row)
    elif expected.dtype == torch.int8:  # rounded numbers
        same = (expected.int() - made.int()).abs() <= 1
    else:
        same = expected == made
    share = 1 - float(same.double().mean())
    return f"{share:.1%} of its integers differ" if share > OF_INTEGERS else None


def _of_floats(expected: Tensor, made: Tensor) -> str | None:
    rows = expected.reshape(-1, expected.shape[-1]) if expected.dim() else expected.reshape(1, 1)
    others = made.reshape(rows.shape)
    step = max(1, _PART // rows.shape[1])
    parts = [slice(first, first + step) for first in range(0, len(rows), step)]
    total = wrong = 0.0
    for part in parts:
        should, is_ = rows[part].float(), others[part].float()
        finite = should.isfinite()
        if not torch.equal(finite, is_.isfinite()):
            return "infinities or NaN are not where they should be"
        should, is_ = (torch.where(finite, each, 0.0).double() for each in (should, is_))
        total += float(should.square().sum())
        wrong += float((should - is_).square().sum())
    if wrong > OF_ALL**2 * total:
        return f"it is off by {(wrong / total) ** 0.5 if total else float('inf'):.1%}, root mean square"
    least = 0.02 * (total / rows.numel()) ** 0.5
    for part in parts:
        should, is_ = (torch.where(each.isfinite(), each, 0.0) for each in (rows[part].float(), others[part].float()))
        allowed = OF_ROW * should.square().mean(1, keepdim=True).sqrt() + _STEPS.get(expected.dtype, 0.0) * should.abs()
        beyond = (should - is_).abs() > allowed + least
        if count := int(beyond.sum()):
            first = int(beyond.any(1).nonzero()[0]) + part.start
            return f"{count} elements are off by more than {OF_ROW:.0%} of their row, the first in row {first}"
    return None
