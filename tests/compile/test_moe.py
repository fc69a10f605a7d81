"""What the compiler makes of the kernels of experts at the shapes of real models."""

from typing import get_args

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import CodedMatrices, CodeKind, Router, Routing, empty_coded, experts_mlp, route
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.linear_coded.blocks import BLOCK_KINDS, empty_blocks

pytestmark = pytest.mark.compiles

QWEN, GPT_OSS, NEMOTRON = (128, 8, 2048, 768), (32, 4, 2880, 2880), (128, 6, 2688, 1856)
"""(experts, top_k, hidden, inner); those of Nemotron 3 Nano have no gate."""


def compiled(
    sizes: tuple[int, int, int, int], tokens: int, capability: int = 90, kind: str | None = None
) -> dict[str, CompiledKernel]:
    experts, top_k, hidden, inner = sizes
    biased = sizes == GPT_OSS

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    def matrices(outputs: int, inputs: int) -> torch.Tensor | CodedMatrices:
        if kind is None:
            return empty(experts, outputs, inputs)
        return in_codes(kind, experts, outputs, inputs)

    with FakeTensorMode(), dry_run(capability) as kernels:
        experts_mlp(
            empty(tokens, hidden),
            Routing(empty(tokens, top_k, dtype=torch.int32), empty(tokens, top_k, dtype=torch.float32)),
            matrices(inner if sizes == NEMOTRON else 2 * inner, hidden),
            matrices(hidden, inner),
            "swiglu_oai" if biased else "relu2" if sizes == NEMOTRON else "silu",
            gate_up_bias=empty(experts, 2 * inner) if biased else None,
            down_bias=empty(experts, hidden) if biased else None,
        )
    for kernel in kernels:
        assert kernel.stack_bytes == 0, kernel.name
        assert kernel.shared_bytes <= 227 * 1024, kernel.name
    return {kernel.name: kernel for kernel in kernels}


def in_codes(kind: str, experts: int, outputs: int, inputs: int) -> CodedMatrices:
    device = torch.device("cuda")
    for block in BLOCK_KINDS:
        if block == kind:
            return empty_blocks(block, experts, outputs, inputs, device)
    code: CodeKind = next(code for code in get_args(CodeKind) if code == kind)
    group, rows = {"mxfp4": (32, 1), "nvfp4": (16, 1), "int4": (32, 1), "fp8": (128, 128), "int8": (128, 1)}[kind]
    return empty_coded(code, experts, outputs, inputs, group=group, rows=rows, device=device)


@pytest.mark.parametrize("sizes", [QWEN, GPT_OSS, NEMOTRON])
def test_few_tokens_read_sixteen_bytes_of_the_weights_at_once(sizes: tuple[int, int, int, int]) -> None:
    kernels = compiled(sizes, 4)
    assert list(kernels) == ["gate_up_kernel", "down_kernel"]
    for kernel in kernels.values():
        assert "ld.global.v4.b32" in kernel.ptx or "cp.async.cg.shared.global" in kernel.ptx, kernel.name
        assert not kernel.uses_tensor_cores


@pytest.mark.parametrize(("sizes", "tokens"), [(QWEN, 64), (QWEN, 4096), (GPT_OSS, 512), (NEMOTRON, 512)])
def test_many_tokens_are_sorted_on_the_device_and_meet_tiles_of_one_expert(
    sizes: tuple[int, int, int, int], tokens: int
) -> None:
    kernels = compiled(sizes, tokens)
    assert list(kernels) == ["count_kernel", "place_kernel", "gate_up_kernel", "down_kernel", "sum_kernel"]
    for name in ("gate_up_kernel", "down_kernel"):
        assert kernels[name].uses_tensor_cores
        assert kernels[name].count(r"LDGSTS.*\.128") > 0
        assert kernels[name].warnings == []
    assert "atom" not in "".join(kernel.ptx for kernel in kernels.values())


@pytest.mark.parametrize("tokens", [4, 512])
@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        (GPT_OSS, "mxfp4"),
        (QWEN, "nvfp4"),
        (QWEN, "int4"),
        (QWEN, "fp8"),
        (QWEN, "int8"),
        (NEMOTRON, "nvfp4"),
        (QWEN, "Q4_0"),
        (QWEN, "Q4_K"),
        (QWEN, "Q6_K"),
        (QWEN, "Q5_1"),
        (GPT_OSS, "IQ4_NL"),
    ],
)
def test_experts_in_codes_are_expanded_in_registers(sizes: tuple[int, int, int, int], kind: str, tokens: int) -> None:
    kernels = compiled(sizes, tokens, kind=kind)
    for name in ("gate_up_kernel", "down_kernel"):
        assert kernels[name].uses_tensor_cores == (tokens > 8)
        assert "local" not in kernels[name].ptx


def test_a_newer_gpu_expands_codes_too() -> None:
    for kind in ("mxfp4", "Q4_K"):
        sizes = GPT_OSS if kind == "mxfp4" else QWEN
        assert compiled(sizes, 512, capability=100, kind=kind)["gate_up_kernel"].uses_tensor_cores


def test_an_older_gpu_is_served() -> None:
    assert compiled(QWEN, 512, capability=80)["gate_up_kernel"].uses_tensor_cores


@pytest.mark.parametrize(
    "router",
    [
        Router(8),
        Router(8, score="sigmoid", groups=8, top_groups=4, scale=2.5),
        Router(2, score="sparsemixer", renormalize=False, nearness=0.02),
        Router(6, groups=8, top_groups=3, group_score="max"),
        Router(6, score="sigmoid", corrects_logits=True, renormalize=False),
        Router(2, renormalize=False, softcap=30.0),
    ],
)
def test_a_router_is_one_kernel(router: Router) -> None:
    with FakeTensorMode(), dry_run() as kernels:
        logits, bias = torch.empty(64, 256, device="cuda"), torch.empty(256, device="cuda")
        route(logits, router, bias if router.score == "sigmoid" else None)
    assert [(kernel.name, kernel.stack_bytes) for kernel in kernels] == [("route_kernel", 0)]
