"""Who runs an operation that others have written too: what each provider can do, and one place that chooses.

Ours, in Triton, is the definition and takes everything; another says by :class:`Provider` what it takes. Those of an
operation are listed in order of preference. Within ours, :mod:`.variants` chooses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Wanted = Literal["auto", "triton", "torch"]
"""``auto``: the first that is preferred and can; else the one of that name, and ours where it cannot."""


@dataclass(frozen=True)
class Case:
    """What an operation is wanted for."""

    device: torch.device
    dtype: torch.dtype
    sizes: tuple[int, ...]
    """Of what lies contiguous in memory: rows of inputs and of outputs."""
    features: frozenset[str] = frozenset()
    """What is asked besides the plain operation, in words of the operation."""

    @property
    def capability(self) -> int:
        """Of its GPU, 90 of 9.0; 0 on a CPU."""
        if self.device.type != "cuda":
            return 0
        from .quantize.fp8 import capability  # late: importing Triton takes half a second

        return capability()


@dataclass(frozen=True)
class Provider:
    """An implementation, and what it takes. Weights and inputs are contiguous."""

    name: Wanted
    title: str
    """For the operator."""
    capabilities: tuple[int, ...]
    """Of GPUs. On a CPU it runs too, for tests."""
    dtypes: tuple[torch.dtype, ...]
    multiple: int
    """Of which sizes must be."""
    features: frozenset[str]
    graph_safe: bool
    """CUDA graphs hold it: it waits for no number of the device."""
    held_back: str | None = None
    """Why it is run only where it is asked for by name; None: it is preferred to ours."""

    def unsupported_reason(self, case: Case) -> str | None:
        """Why it cannot run, a clause; None where it can."""
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
    """Who runs, None for ours, and why others do not."""

    provider: Provider | None
    refusals: tuple[tuple[Provider, str], ...] = ()

    def describe(self, operation: str) -> str:
        """One line for the operator."""
        runs = "this server's kernels (Triton)" if self.provider is None else self.provider.title
        why = "".join(f"; {provider.title} does not run: {reason}" for provider, reason in self.refusals)
        return f"{operation} run on {runs}{why}"


def choose_provider(case: Case, providers: Sequence[Provider], wanted: Wanted = "auto") -> Chosen:
    """The first of ``providers`` that can run and is wanted; ours where none is."""
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
