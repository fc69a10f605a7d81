"""rows of a table, times a scale"""

import torch
from torch import Tensor


def embedding(tokens: Tensor, table: Tensor, scale: float) -> Tensor:
    if tokens.is_cpu and not bool(((tokens >= 0) & (tokens < table.shape[0])).all()):
        raise IndexError(f"embedding: a token lies outside the table's {table.shape[0]} rows")
    rows = torch.nn.functional.embedding(tokens, table)
    return rows if scale == 1.0 else (rows.float() * scale).to(table.dtype)
