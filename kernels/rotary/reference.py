"""Rotary embedding (arXiv:2104.09864), half-split: the pair (i, i + R/2) turns by the angle of its position."""

from torch import Tensor


def rotary_(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    half = cos.shape[1]
    outside = positions[(positions < 0) | (positions >= cos.shape[0])]
    if outside.numel():
        raise IndexError(f"rotary_: position {int(outside[0])} lies outside the table of {cos.shape[0]}")
    c = cos[positions].unsqueeze(1)  # [tokens, 1, rotary_dim / 2]
    s = sin[positions].unsqueeze(1)
    for heads in (q, k):
        first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
        turned = first * c - second * s, second * c + first * s
        heads[..., :half], heads[..., half : 2 * half] = turned
