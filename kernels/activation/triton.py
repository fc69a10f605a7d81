# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""act(gate) · up in tiles of one row, quantised if asked for."""

import triton
import triton.language as tl
from torch import Tensor

from ..launching.dependent import follow
from ..launching.launch import cdiv
from ..launching.repeated import Start, prepare
from ..quantize.fp8 import as_kernel_argument
from ..quantize.scheme import LARGEST, ActivationScheme
from ..quantize.triton_rows import store_rows
from ..tuning import Config, pick
from .triton_gate import gated


@triton.jit
def gated_activation_kernel(
    gate_up_ptr,
    out_ptr,
    scales_ptr,
    row_stride,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    GRANULARITY: tl.constexpr,
    GROUP: tl.constexpr,
    GREATEST: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    follow(DEPENDENT)
    rows = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)[:, None]
    first = tl.program_id(1) * BLOCK
    columns = first + tl.arange(0, BLOCK)[None, :]
    fits = columns < WIDTH
    source = gate_up_ptr + rows * row_stride + columns  # [1, BLOCK]
    gate = tl.load(source, mask=fits, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=fits, other=0.0).to(tl.float32)
    y = gated(gate, up, KIND).to(gate_up_ptr.dtype.element_ty).to(tl.float32)
    store_rows(y, out_ptr, scales_ptr, rows, rows >= 0, first, WIDTH, GRANULARITY, GROUP, GREATEST)


def prepare_gated_activation(
    gate_up: Tensor,
    kind: str,
    out: Tensor,
    scheme: ActivationScheme | None = None,
    scales: Tensor | None = None,
) -> Start:
    """Prepares a launch with ``gate_up``, ``out`` and ``scales``; see the public calls.

    It fills ``out`` [T, I], contiguous, and under a dynamic scheme ``scales``.
    """
    rows, width = out.shape
    whole = 1 << max(4, (width - 1).bit_length())
    key = f"{width} {str(gate_up.dtype).removeprefix('torch.')}"
    if scheme is not None and scheme.granularity == "token":
        config = pick("gated_activation_token", key, Config.of(num_warps=min(16, max(4, whole // 512))))
        block = whole
    else:
        least = 16 if scheme is None else scheme.group
        operation = "gated_activation" if scheme is None else "gated_activation_quantized"
        config = pick(operation, key, Config.of(BLOCK=min(whole, 1024), num_warps=4))
        block = max(config["BLOCK"], least)
    return prepare(
        gated_activation_kernel,
        (rows, cdiv(width, block)),
        (gate_up, as_kernel_argument(out), scales),
        gate_up.stride(0),
        config=Config.of(num_warps=config.num_warps, num_stages=config.num_stages),
        WIDTH=width,
        KIND=kind,
        GRANULARITY="none" if scheme is None else scheme.granularity,
        GROUP=1 if scheme is None else scheme.group,
        GREATEST=1.0 if scheme is None else LARGEST[scheme.dtype],
        BLOCK=block,
    )
