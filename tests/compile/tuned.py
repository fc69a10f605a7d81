"""What the tuner times, and what launches look up."""

from collections.abc import Sequence

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.tuning import Config, Tunable


def check_looked_up(
    module: object, launches: Sequence[object], tunables: Sequence[Tunable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workload of each tunable asks ``module`` for that tunable's key alone. ``launches``: modules that launch."""
    asked = []

    def pick(operation: str, key: str, default: Config) -> Config:
        asked.append((operation, key))
        return default

    monkeypatch.setattr(module, "pick", pick)
    for each in launches:
        monkeypatch.setattr(each, "launch", lambda *_, **__: None)
    with FakeTensorMode(), dry_run():
        for tunable in tunables:
            tunable.workload(torch.device("cuda"))()
    assert asked == [(tunable.operation, tunable.key) for tunable in tunables]
