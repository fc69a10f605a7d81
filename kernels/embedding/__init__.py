"""Token embedding."""

import torch
from torch import Tensor

from ..guards import FLOATS, describe, triton_unsupported_reason
from ..variants import Choice, Variant, select_variant


def choose(table: Tensor, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`embedding` runs. Raises ValueError if a named one cannot run."""
    return select_variant(variant, triton=triton_unsupported_reason(table, variant))


def embedding(tokens: Tensor, table: Tensor, scale: float = 1.0, *, variant: Choice = "auto") -> Tensor:
    """Returns the rows of ``table`` at ``tokens``, times ``scale`` in float32, rounded once.

    Args:
        tokens: [T] int64.
        table: [V, H] of a float dtype; rows may be strided, the last dim is contiguous.
        scale: used as given: if a model rounds it to the dtype of ``table`` first, the caller must do so.
        variant: forces an implementation.

    Returns:
        [T, H], a new contiguous tensor of the dtype of ``table``. Under Triton a token outside [0, V) gives a row of
        zeros, and nothing is read for it. The reference on CUDA faults, as torch does.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
        IndexError: on the CPU, a token outside [0, V).
    """
    if tokens.dim() != 1 or tokens.dtype != torch.int64 or tokens.device != table.device:
        raise ValueError(f"embedding: tokens {describe(tokens)} must be [T] int64 on {table.device}")
    if table.dim() != 2 or table.dtype not in FLOATS:
        raise ValueError(f"embedding: table {describe(table)} must be [V, H] of a float dtype")
    if table.shape[1] > 1 and table.stride(1) != 1:
        raise ValueError(f"embedding: the rows of the table must be contiguous, its strides are {table.stride()}")
    if choose(table, variant) == "reference":
        return _reference(tokens, table, scale)
    from .triton import gather_rows  # late: heavy

    out = table.new_empty((tokens.shape[0], table.shape[1]))
    gather_rows(tokens, table, scale, out)
    return out


def _reference(tokens: Tensor, table: Tensor, scale: float) -> Tensor:
    """The plain torch reference."""
    if tokens.is_cpu and not bool(((tokens >= 0) & (tokens < table.shape[0])).all()):
        raise IndexError(f"embedding: a token lies outside the table's {table.shape[0]} rows")
    rows = torch.nn.functional.embedding(tokens, table)
    return rows if scale == 1.0 else (rows.float() * scale).to(table.dtype)
