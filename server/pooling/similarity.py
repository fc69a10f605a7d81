"""How alike two texts are by their vectors. numpy is imported with the first of them."""

from collections.abc import Sequence
from typing import Any

from stentor.protocols.ipc.pooling import Pooled


def matrix(pooled: Pooled) -> Any:
    """float32 [rows, columns]"""
    import numpy as np  # late: a server starts without it

    return np.frombuffer(pooled.data, "<f4").reshape(pooled.rows, pooled.columns)


def cosines(first: Sequence[Pooled], second: Sequence[Pooled]) -> list[float]:
    """Of each of ``second`` and the only one of ``first``, or that in its place."""
    import numpy as np

    left = np.concatenate([matrix(each) for each in first])
    right = np.concatenate([matrix(each) for each in second])
    products = (left * right).sum(axis=1)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosine: list[float] = (products / np.maximum(lengths, 1e-12)).tolist()
    return cosine


def products(first: Sequence[Pooled], second: Sequence[Pooled], vocabulary: int) -> list[float]:
    """As :func:`cosines`, of weights by the ids of tokens, which are below ``vocabulary``: multiplied and summed."""
    import numpy as np

    scores = []
    known = np.zeros(vocabulary, "<f4")
    of = -1
    for place, document in enumerate(second):
        if of != (own := place if len(first) > 1 else 0):
            of = own
            known[:] = 0
            known[np.frombuffer(first[own].ids, "<u4")] = np.frombuffer(first[own].data, "<f4")
        scores.append(float(known[np.frombuffer(document.ids, "<u4")] @ np.frombuffer(document.data, "<f4")))
    return scores


def late_interaction(first: Sequence[Pooled], second: Sequence[Pooled], kept: Sequence[Sequence[int]]) -> list[float]:
    """For each token of a query the document's token that is most like it, summed (ColBERT, arXiv:2004.12832).

    ``kept`` are the rows of each document that count.
    """
    scores = []
    for place, document in enumerate(second):
        query = matrix(first[place if len(first) > 1 else 0])
        rows = matrix(document)[kept[place]]
        scores.append(float((query @ rows.T).max(axis=1).sum()) if len(rows) and len(query) else 0.0)
    return scores
