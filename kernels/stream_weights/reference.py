"""before = sigmoid(s₀ x + b) + ε, after = 2 sigmoid(s₁ x + b), and a matrix: softmax(s₂ x + b) + ε by rows, divided in
turn by the sums of its columns and of its rows, so that both become 1 (Sinkhorn and Knopp).

From a token's numbers x to the weights of its residual streams (arXiv:2512.24880).
"""

import torch
from torch import Tensor


def stream_weights(x: Tensor, base: Tensor, scale: Tensor, streams: int, iterations: int, eps: float) -> Tensor:
    sizes = (streams, streams, streams * streams)
    before, after, mix = (
        part * factor + bias
        for part, factor, bias in zip(x.split(sizes, dim=1), scale.unbind(), base.split(sizes), strict=True)
    )
    matrix = mix.unflatten(1, (streams, streams)).softmax(2) + eps  # [tokens, streams, streams]
    matrix = matrix / (matrix.sum(1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(2, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(1, keepdim=True) + eps)
    return torch.cat([before.sigmoid() + eps, 2 * after.sigmoid(), matrix.flatten(1)], dim=1)
