"""Kernels started directly beside Triton's own way, over a CUDA driver that runs nothing: what reaches the driver is
the same to the last bit of every parameter."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.kernels.launching import compiled
from stentor.kernels.launching.compiled import Launcher, start_slowly
from stentor.kernels.linear_fp8.triton_tma import prepare_tma
from stentor.kernels.linear_fp8.workloads import filled, unfilled
from stentor.kernels.quantize.scheme import FP8
from stentor.kernels.tuning import Config
from stentor.tests.kernels.cuda_stub import SIZES, CudaStub, StubLaunch, stubbed_cuda
from stentor.tests.kernels.launched_kernel import launched

pytestmark = pytest.mark.compiles

CONFIG = Config.of(BLOCK=16, num_warps=1, num_stages=1)
BUFFER = torch.zeros(256, dtype=torch.uint8)


@pytest.fixture(scope="module")
def stub() -> Any:
    with stubbed_cuda() as found:
        yield found


def _both_ways(stub: CudaStub, launcher: Launcher, grid: tuple[int, ...], args: tuple[Any, ...], mode: object) -> bytes:
    """What reaches the driver, and the same by the launcher, first and again."""
    stub.expect([])
    made = start_slowly(launched, grid, args, CONFIG, {"MODE": mode})
    signature = [kind for kind in made.src.signature.values() if kind != "constexpr"]
    stub.expect([SIZES.get(kind, 8) for kind in signature] + [8, 8])
    start_slowly(launched, grid, args, CONFIG, {"MODE": mode})
    expected, before = stub.last, stub.launches
    for _ in range(2):
        launcher.start(grid, args, CONFIG, {"MODE": mode})
        assert stub.last == expected, (args, mode)
    assert stub.launches == before + 2
    return expected


def test_what_reaches_the_driver_is_what_triton_would_send(stub: CudaStub) -> None:
    rng = random.Random(5)
    launcher = Launcher(launched)
    tensors = [BUFFER[at : at + 64].view(dtype) for at in (0, 8) for dtype in (torch.float32, torch.bfloat16)]
    numbers = (1, 3, 16, -5, (1 << 31) + 16, (1 << 40) + 1, (1 << 63) + 1)
    grids = ((7,), (7, 3), (7, 3, 2))
    seen = {
        _both_ways(
            stub,
            launcher,
            rng.choice(grids),
            (
                rng.choice(tensors),
                rng.choice([None, *tensors]),
                rng.choice(numbers),
                rng.choice(numbers),
                fraction,
                flag,
            ),
            mode,
        )
        for fraction, flag, mode in itertools.product((0.5, -1e-5), (True, False), ("row", 2))
        for _ in range(2)
    }
    assert len(seen) > 8


def test_a_kernel_whose_arguments_are_laid_out_otherwise_is_another(stub: CudaStub) -> None:
    """The driver's handle of the kernel comes after its grid, block and shared memory."""
    launcher = Launcher(launched)
    whole, crooked = BUFFER[:64].view(torch.float32), BUFFER[8:72].view(torch.float32)
    functions = set()
    for tensor, number in ((whole, 16), (crooked, 16), (whole, 3), (whole, 1)):
        _both_ways(stub, launcher, (4,), (tensor, None, number, 5, 0.5, True), 2)
        functions.add(stub.function)
    assert len(functions) == 4


def test_a_kernel_that_describes_tensors_to_the_copy_engine_is_given_memory_for_it(
    stub: CudaStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(unfilled(torch.device("cpu"), 300, 256, 512, FP8, True, True), torch.device("cpu"))
    config = Config.of(BLOCK_T=64, BLOCK_N=64, BLOCK_K=128, PROGRAMS_PER_SM=1)
    lent: list[int] = []

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        lent.append(size)
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(compiled, "_allocate", allocate)
    product = prepare_tma(made, config, None, 8, False)
    seen = []
    for _ in range(3):  # by Triton, and then directly
        stub.expect([])
        product(*made.tensors)
        stub.expect([8] * 5 + [4] * 5 + [8, 8])  # tensors, numbers, and Triton's memory
        before = stub.launches
        product(*made.tensors)
        assert stub.launches == before + 1
        seen.append(StubLaunch.from_buffer_copy(stub.last))
    assert {tuple(each.grid) for each in seen} == {(5 * 4, 1, 1)}
    assert all(each.params[10] and not each.params[11] for each in seen)
    assert set(lent) == {5 * 4 * 2 * 128}  # two descriptors a program
    assert len(lent) == 6


def test_a_launch_is_that_of_the_device_whose_turn_it_is(
    stub: CudaStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from triton.runtime import driver

    launcher = Launcher(launched)
    args = (BUFFER.view(torch.float32), None, 16, 5, 0.5, True)
    functions = []
    for device in (0, 1, 0):
        monkeypatch.setattr(driver.active, "get_current_device", lambda device=device: device)
        _both_ways(stub, launcher, (4,), args, 2)
        functions.append(stub.function)
    assert functions[0] == functions[2] != functions[1]
