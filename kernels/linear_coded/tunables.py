"""The coded weights that the tuner tries: NVFP4, MXFP4, IQ4_NL and int8 in the shapes of Llama-3.1-8B."""

from collections.abc import Callable
from functools import partial

import torch

from ..tuning import Tunable
from . import linear_coded, triton
from .weight import CodedMatrices, empty_coded

SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""(N, K)"""
TOKENS = (1, 64, 256)


def tunables() -> list[Tunable]:
    return [
        Tunable(
            triton.OPERATION,
            triton.key(_weight(kind, shape, torch.device("meta")), tokens, torch.bfloat16),
            triton.candidates(tokens),
            partial(_workload, kind, shape, tokens, triton.run),
            partial(_workload, kind, shape, tokens, partial(linear_coded, variant="reference")),
        )
        for kind in ("nvfp4", "mxfp4", "iq4nl", "int8")
        for shape in SHAPES
        for tokens in TOKENS
    ]


def _weight(kind: str, shape: tuple[int, int], device: torch.device) -> CodedMatrices:
    """Returns a weight of random codes."""
    if kind == "nvfp4":
        made = empty_coded("nvfp4", 1, *shape, group=16, device=device)
        made.scales.fill_(1.0)
    elif kind == "mxfp4":
        made = empty_coded("mxfp4", 1, *shape, group=32, device=device)
        made.scales.fill_(120)
    elif kind == "iq4nl":
        made = empty_coded("iq4nl", 1, *shape, group=32, device=device)
        made.scales.fill_(0.01)
    else:
        made = empty_coded("int8", 1, *shape, group=128, device=device)
        made.scales.fill_(0.01)
    made.codes.random_(0, 256)
    if made.factors is not None:
        made.factors.fill_(0.01)
    return made


def _workload(
    kind: str,
    shape: tuple[int, int],
    tokens: int,
    run: Callable[[torch.Tensor, CodedMatrices, None], torch.Tensor],
    device: torch.device,
) -> Callable[[], object]:
    x = torch.randn(tokens, shape[1], dtype=torch.bfloat16, device=device)
    return partial(run, x, _weight(kind, shape, device), None)
