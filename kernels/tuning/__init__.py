"""Block sizes by GPU: those of a measured file if there is one, else the launcher's own.

A file is JSON, ``{operation: {key: {"BLOCK_M": 64, …, "num_warps": 4, "num_stages": 3}}}``. The shipped files are
beside this module, named after the GPU (``nvidia-h200.json``). ``stentor tune`` writes one to the cache, which takes
precedence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..variants import force_variant
from .config import Config
from .table import load_table, overridden, pick, table_path, tuned_for, tuning_name, untuned

Workload = Callable[[torch.device], Callable[[], object]]


@dataclass(frozen=True)
class Tunable:
    """One kernel at one shape.

    A tuner runs ``workload(device)``, which makes tensors of realistic size and returns a call that launches the
    operation on them, and returns or contains all that it writes. It times that call under each candidate
    (:func:`.overridden`), and compares what the first call returns with what it should be: tensors are random, from
    torch's generators, and the same after the same seed.
    """

    operation: str
    """The launcher's name for it in :func:`.pick`."""
    key: str
    candidates: Sequence[Config]
    workload: Workload
    definition: Workload | None = None
    """Makes the same tensors, and returns a call of the operation's definition; None: what the launcher's default
    computes is taken for right."""


def by_reference(workload: Workload) -> Workload:
    """Returns a workload whose call runs the reference of the operations within that let :mod:`..variants` choose."""

    def make(device: torch.device) -> Callable[[], object]:
        call = workload(device)

        def run() -> object:
            with force_variant("reference"):
                return call()

        return run

    return make


__all__ = [
    "Config",
    "Tunable",
    "Workload",
    "by_reference",
    "load_table",
    "overridden",
    "pick",
    "table_path",
    "tuned_for",
    "tuning_name",
    "untuned",
]
