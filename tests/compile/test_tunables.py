"""Block sizes that are offered to the tuner, at the shapes of models: what takes most fits into a multiprocessor."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest
import torch

from stentor.engine.worker.dry_device import dry_device
from stentor.kernels.dry_run import CompiledKernel, dry_run
from stentor.kernels.launch import interpreted
from stentor.kernels.tuning import Config, Tunable, overridden, untuned

pytestmark = [pytest.mark.compiles, pytest.mark.proof(each="operation")]

SHARED_BYTES = 227 * 1024
"""Of a program on Hopper."""


def by_operation() -> dict[str, list[Tunable]]:
    found: dict[str, list[Tunable]] = defaultdict(list)
    if not interpreted():
        from stentor.kernels.tuning.search import all_tunables  # late: they import Triton

        for tunable in all_tunables():
            found[tunable.operation].append(tunable)
    return found


TUNABLES = by_operation()
LIBRARY_BY_DEFAULT = "linear_gemv"
"""Untuned it is torch's product, which launches none of ours."""


def size(config: Config) -> int:
    """Grows with what a program holds."""
    return math.prod(config.sizes.values()) * config.num_stages


def largest(candidates: Sequence[Config]) -> list[Config]:
    """Those of which no other has at least as much of every size and as many stages: the others take less memory."""
    extents = {(*each.sizes.values(), each.num_stages): each for each in candidates}

    def exceeded(extent: tuple[int, ...]) -> bool:
        return any(other != extent and all(a >= b for a, b in zip(other, extent, strict=True)) for other in extents)

    return [each for extent, each in extents.items() if not exceeded(extent)]


def offers(operation: str) -> Iterator[tuple[Tunable, Config]]:
    """The largest of each list of candidates that an operation offers, with a tunable that offers them."""
    lists = {tuple(tunable.candidates): tunable for tunable in TUNABLES[operation]}
    for candidates, tunable in lists.items():
        for config in largest(candidates):
            yield tunable, config


def compiled(tunable: Tunable, config: Config | None) -> list[CompiledKernel]:
    """What one call launches under ``config``, or under the launcher's own."""
    with dry_device(), dry_run() as kernels, untuned() if config is None else overridden(tunable.operation, config):
        tunable.workload(torch.device("cuda"))()
    return kernels


@pytest.fixture(autouse=True)
def _generators_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built without CUDA has no others."""
    generator = torch.Generator()
    monkeypatch.setattr(torch, "Generator", lambda device: generator)


@pytest.mark.parametrize("operation", sorted(TUNABLES) or ["none"])
def test_the_largest_candidates_of_an_operation_fit(operation: str) -> None:
    for tunable, config in offers(operation):
        kernels = compiled(tunable, config)
        assert kernels
        for kernel in kernels:
            assert kernel.shared_bytes <= SHARED_BYTES, (kernel.name, kernel.config)


@pytest.mark.parametrize("operation", sorted(TUNABLES) or ["none"])
def test_what_an_operation_takes_by_itself_fits_and_spills_nothing(operation: str) -> None:
    kernels = compiled(max(TUNABLES[operation], key=lambda each: max(map(size, each.candidates))), None)
    assert kernels or operation == LIBRARY_BY_DEFAULT
    for kernel in kernels:
        assert kernel.shared_bytes <= SHARED_BYTES, (kernel.name, kernel.config)
        assert kernel.stack_bytes == 0, (kernel.name, kernel.config)
