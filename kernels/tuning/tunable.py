"""What an operation offers the tuner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .config import Config


@dataclass(frozen=True)
class Tunable:
    """One kernel at one shape.

    A tuner runs ``workload(device)`` once, which makes tensors of realistic size and returns a call that
    launches the operation on them, and times that call under each candidate (:func:`.overridden`).
    """

    operation: str
    """As the launcher calls it in :func:`.pick`."""
    key: str
    candidates: Sequence[Config]
    workload: Callable[[torch.device], Callable[[], object]]
