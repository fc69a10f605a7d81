"""Block sizes that are offered to the tuner, at the shapes of models: what takes most fits into a multiprocessor."""

import math

import pytest
import torch
from torch.utils._pytree import tree_iter

from stentor.engine.worker.device.dry import dry_device
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.launching.launch import interpreted
from stentor.kernels.tuning import Config, Tunable, overridden, untuned

pytestmark = [pytest.mark.compiles, pytest.mark.proof(each="offered")]

SHARED_BYTES = 227 * 1024
"""Of a program on Hopper."""


def by_candidates() -> dict[str, Tunable]:
    """One of each operation and set of candidates, by names."""
    found: dict[tuple[str, frozenset[Config]], Tunable] = {}
    if not interpreted():
        from stentor.kernels.tuning.search import all_tunables  # late: they import Triton

        for tunable in all_tunables():
            found.setdefault((tunable.operation, frozenset(tunable.candidates)), tunable)
    return {f"{tunable.operation} {tunable.key}": tunable for tunable in found.values()}


OFFERED = by_candidates()
LIBRARY_BY_DEFAULT = ("linear_gemv", "linear_skinny")
"""Untuned they are torch's product, which launches none of ours."""


def size(config: Config) -> int:
    """Grows with what a program holds."""
    return math.prod(config.sizes.values()) * config.num_stages


def compiled(tunable: Tunable, config: Config | None) -> list[CompiledKernel]:
    """What one call launches under ``config``, or under the launcher's own."""
    with dry_device(), dry_run() as kernels, untuned() if config is None else overridden(tunable.operation, config):
        result = tunable.workload(torch.device("cuda"))()
    assert any(isinstance(each, torch.Tensor) for each in tree_iter(result)), "the tuner would have nothing to compare"
    return kernels


@pytest.fixture(autouse=True)
def _generators_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built without CUDA has no others."""
    generator = torch.Generator()
    monkeypatch.setattr(torch, "Generator", lambda device: generator)


@pytest.mark.parametrize("offered", sorted(OFFERED) or ["none"])
def test_the_largest_candidate_and_the_default_fit(offered: str) -> None:
    tunable = OFFERED[offered]
    for config in (max(tunable.candidates, key=size), None):
        kernels = compiled(tunable, config)
        assert kernels or (config is None and tunable.operation in LIBRARY_BY_DEFAULT)
        for kernel in kernels:
            assert kernel.shared_bytes <= SHARED_BYTES, (kernel.name, kernel.config)
            if config is None:
                assert kernel.stack_bytes == 0, (kernel.name, kernel.config)
                assert kernel.warnings == [], (kernel.name, kernel.config)
