"""The definition: expand, and multiply."""

from torch import Tensor

from .weight import CodedMatrices


def linear_coded(x: Tensor, weight: CodedMatrices, bias: Tensor | None) -> Tensor:
    values = weight.values(0, x.dtype)
    made = x.float() @ values.float().T
    return (made if bias is None else made + bias.float()).to(x.dtype)
