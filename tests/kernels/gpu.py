"""Where Triton kernels are tested: on the GPU, or interpreted on the CPU."""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

TRITON_FLOATS = (
    torch.float32,
    torch.float16,
    # the interpreter multiplies bfloat16 matrices wrongly
    pytest.param(torch.bfloat16, marks=pytest.mark.gpu),
)
