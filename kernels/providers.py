"""Chooses between our implementation of an operation and those of other libraries.

Ours, in Triton, is the reference and takes every case. Each other one says by :class:`Provider` what it takes. The
providers of an operation are listed in order of preference. :mod:`.variants` chooses among our own variants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Wanted = Literal["auto", "triton", "torch"]
"""``auto``: the first provider that can run and is not held back. A name: that provider, or ours if it cannot run."""


@dataclass(frozen=True)
class Case:
    """The case that an operation is wanted for."""

    device: torch.device
    dtype: torch.dtype
    sizes: tuple[int, ...]
    """Sizes of the dimensions that are contiguous in memory: rows of inputs and of outputs."""
    features: frozenset[str] = frozenset()
    """Features needed beyond the plain operation, named by the operation."""

    @property
    def capability(self) -> int:
        """The compute capability of its GPU, 90 for 9.0; 0 on a CPU."""
        if self.device.type != "cuda":
            return 0
        from .quantize.fp8 import capability  # late: importing Triton takes half a second

        return capability()


@dataclass(frozen=True)
class Provider:
    """An implementation and the cases it takes. Weights and inputs are contiguous."""

    name: Wanted
    title: str
    """The name shown to the operator."""
    capabilities: tuple[int, ...]
    """Compute capabilities of the GPUs it runs on. It also runs on a CPU, for tests."""
    dtypes: tuple[torch.dtype, ...]
    multiple: int
    """Sizes must be multiples of it."""
    features: frozenset[str]
    graph_safe: bool
    """Whether CUDA graphs can capture it: it reads no number back from the device."""
    held_back: str | None = None
    """Why it runs only if asked for by name; None: it is preferred to ours."""

    def unsupported_reason(self, case: Case) -> str | None:
        """Returns why it cannot run, as a clause; None if it can."""
        if case.device.type == "cuda" and case.capability not in self.capabilities:
            wanted = " and ".join(map(_version, self.capabilities))
            return f"it takes compute capability {wanted}, not {_version(case.capability)}"
        if not self.graph_safe and case.device.type == "cuda":
            return "CUDA graphs cannot hold it"
        if case.dtype not in self.dtypes:
            wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
            return f"it takes {wanted}, not {str(case.dtype).removeprefix('torch.')}"
        if missing := sorted(case.features - self.features):
            return f"it does not take {', '.join(missing)}"
        if odd := next((size for size in case.sizes if size % self.multiple), None):
            return f"it takes sizes that are multiples of {self.multiple}, not {odd}"
        return None


@dataclass(frozen=True)
class Chosen:
    """The provider that runs, None for ours, and why the others do not."""

    provider: Provider | None
    refusals: tuple[tuple[Provider, str], ...] = ()

    def describe(self, operation: str) -> str:
        """Returns one line for the operator."""
        runs = "this server's kernels (Triton)" if self.provider is None else self.provider.title
        why = "".join(f"; {provider.title} does not run: {reason}" for provider, reason in self.refusals)
        return f"{operation} run on {runs}{why}"


def choose_provider(case: Case, providers: Sequence[Provider], wanted: Wanted = "auto") -> Chosen:
    """Returns the first of ``providers`` that is wanted and can run; ours if none."""
    refusals: list[tuple[Provider, str]] = []
    for provider in providers:
        reason = provider.unsupported_reason(case)
        if reason is None and wanted == "auto":
            reason = provider.held_back
        if reason is None and wanted not in ("auto", provider.name):
            reason = f"{wanted} was asked for"
        if reason is None:
            return Chosen(provider, tuple(refusals))
        refusals.append((provider, reason))
    return Chosen(None, tuple(refusals))


def _version(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"
