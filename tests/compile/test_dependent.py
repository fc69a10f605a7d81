"""Kernels whose launches overlap wait before they touch memory, and are started as such."""

import re
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor import kernels
from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.rotate_and_write import rotate_and_write_kv_
from stentor.kernels.tuning import overridden
from stentor.tests.kernels.cuda_stub import stubbed_cuda

pytestmark = pytest.mark.compiles

HEADS, KV_HEADS, DIM, HIDDEN, BLOCK = 32, 8, 128, 4096, 64
MEMORY = r"(LDG|LDGSTS|STG|ATOMG?|RED|LD|ST|UTMA\w+|UBLKCP)\b"
"""Instructions that read or write what other launches do too."""


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def rotate() -> None:
    q, k = empty(4, HEADS, DIM), empty(4, KV_HEADS, DIM)
    cos, sin = (empty(64, DIM // 2, dtype=torch.float32) for _ in range(2))
    places = empty(4, dtype=torch.int64)
    k_cache, v_cache = caches()
    rotate_and_write_kv_(q, k, k, cos, sin, places, k_cache, v_cache, places)


def caches() -> tuple[torch.Tensor, torch.Tensor]:
    return kernels.make_kv_cache(32, KV_HEADS, DIM, BLOCK, torch.bfloat16, torch.device("cuda"), keys_transposed=False)


def attend() -> None:
    def numbers(*shape: int) -> torch.Tensor:
        return empty(*shape, dtype=torch.int32)

    batch = kernels.AttentionBatch(
        numbers(5), numbers(4), numbers(4, 8), empty(4, dtype=torch.int64), 1, 8 * BLOCK, decode_rows=4
    )
    kernels.paged_attention(empty(4, HEADS, DIM), *caches(), batch, scale=0.1)


def row() -> None:
    given = empty(1, HIDDEN), empty(HIDDEN), empty(1024, HIDDEN)
    kernels.normed_linear(*given, 1e-5, residual=empty(1, HIDDEN), variant="triton")


def rows() -> None:
    given = empty(4, HIDDEN), empty(HIDDEN), empty(1024, HIDDEN)
    kernels.normed_linear(*given, 1e-5, squares=empty(64, 4, dtype=torch.float32), variant="triton")


def multiply_fp8(tokens: int) -> None:
    weight = empty(1024, HIDDEN, dtype=torch.float8_e4m3fn)
    kernels.linear_fp8(empty(tokens, HIDDEN), weight, empty(1024, dtype=torch.float32), variant="triton")


CALLS: dict[str, Callable[[], object]] = {
    "rms_norm_kernel": lambda: kernels.add_rms_norm(empty(4, HIDDEN), empty(4, HIDDEN), empty(HIDDEN), 1e-5),
    "gated_activation_kernel": lambda: kernels.gated_activation(empty(4, 2 * HIDDEN), "silu"),
    "_rotate_and_write_kernel": rotate,
    "decode_kernel": attend,
    "linear_gemv_kernel": lambda: kernels.linear(empty(1, HIDDEN), empty(1024, HIDDEN), variant="triton"),
    "normed_row_kernel": row,
    "normed_skinny_kernel": rows,
    "skinny_kernel": lambda: kernels.linear(empty(4, HIDDEN), empty(1024, HIDDEN), variant="triton"),
    "gemv_kernel": lambda: multiply_fp8(1),
    "add_parts_kernel": lambda: multiply_fp8(4),
}
WEIGHTS = {
    "linear_gemv_kernel": "x weight out",
    "normed_row_kernel": "x residual norm weight out total",
    "normed_skinny_kernel": "x squares norm weight out",
    "skinny_kernel": "x weight out",
    "gemv_kernel": "x weight weight_scale out",
}
"""What kernels are given that fetch weights, in order."""


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_waits_before_it_touches_memory_where_launches_overlap_and_nowhere_else(name: str) -> None:
    from stentor.kernels.launching.dependent import OPERATION, TOGETHER  # late: it imports Triton

    with FakeTensorMode(), dry_run() as compiled:
        CALLS[name]()
        with overridden(OPERATION, TOGETHER):
            CALLS[name]()
    apart, together = (kernel for kernel in compiled if kernel.name == name)
    assert "griddepcontrol" not in apart.ptx
    assert "prefetch" not in apart.ptx
    assert together.stack_bytes == 0
    before, found, _ = together.ptx.partition("griddepcontrol.wait")
    body = before[before.index("{") :]
    assert found
    assert not re.search(r"\b(bra|ld\.(?!param)|st\.|atom|red\.|cp\.)", body)
    assert together.ptx.count("griddepcontrol.wait") == 1
    assert together.ptx.count("griddepcontrol.launch_dependents") == 1
    instructions = together.instructions
    waits = [at for at, each in enumerate(instructions) if each.startswith("ACQBULK")]
    touches = [at for at, each in enumerate(instructions) if re.match(MEMORY, each)]
    assert len(waits) == 1
    assert touches
    assert waits[0] < touches[0]
    assert not any(each.startswith(("BRA", "EXIT", "RET")) for each in instructions[: waits[0]])
    given = WEIGHTS.get(name, "").split()
    assert fetched(before) == ({given.index("weight")} if given else set())
    fetches = [at for at, each in enumerate(instructions) if each.startswith("CCTL.E.PF2")]
    assert bool(fetches) == bool(given)
    assert all(at < waits[0] for at in fetches)


def fetched(ptx: str) -> set[int]:
    """Which of a kernel's pointers the addresses that it prefetches are made of."""
    pointers: dict[str, set[int]] = defaultdict(set)
    found: set[int] = set()
    for line in ptx[ptx.index("{") :].splitlines():
        if given := re.match(r"\s*ld\.param\.b64\s+(%rd\d+), \[\w+_param_(\d+)\]", line):
            pointers[given[1]] = {int(given[2])}
        elif address := re.search(r"prefetch\.global\.L2 \[(%rd\d+)\]", line):
            found |= pointers[address[1]]
        elif made := re.match(r"\s*[\w.:]+\s+(%\w+), (.*);", line):
            pointers[made[1]] = set().union(*(pointers[each] for each in re.findall(r"%\w+", made[2])))
    return found


@pytest.mark.parametrize("together", [False, True])
def test_the_driver_is_told_which_launches_overlap(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from stentor.kernels.launching.dependent import APART, OPERATION, TOGETHER  # late: it imports Triton

    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    x, weight = torch.zeros(4, 64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    with stubbed_cuda() as stub, overridden(OPERATION, TOGETHER if together else APART):
        stub.expect([8])
        for _ in range(2):  # Triton's own way, then ours
            kernels.rms_norm(x, weight, 1e-5)
            assert stub.dependent == together
        stub.expect([])
