"""Block sizes by GPU: those of a measured file if there is one, else the launcher's own.

A file is JSON, ``{operation: {key: {"BLOCK_M": 64, …, "num_warps": 4, "num_stages": 3}}}``. The shipped files are
beside this module, named after the GPU (``nvidia-h200.json``). ``stentor tune`` writes one to the cache, which takes
precedence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .config import Config
from .table import load_table, overridden, pick, table_path, tuned_for, tuning_name, untuned


@dataclass(frozen=True)
class Tunable:
    """One kernel at one shape.

    A tuner runs ``workload(device)`` once, which makes tensors of realistic size and returns a call that launches the
    operation on them. It times that call under each candidate (:func:`.overridden`).
    """

    operation: str
    """The launcher's name for it in :func:`.pick`."""
    key: str
    candidates: Sequence[Config]
    workload: Callable[[torch.device], Callable[[], object]]


__all__ = [
    "Config",
    "Tunable",
    "load_table",
    "overridden",
    "pick",
    "table_path",
    "tuned_for",
    "tuning_name",
    "untuned",
]
