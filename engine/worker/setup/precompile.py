"""Compiles the kernels that a start on a GPU would compile, without the GPU."""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from stentor.kernels.launching.dry_run import compiling
from stentor.kernels.launching.precompiled import fill
from stentor.kernels.tuning import tuned_for
from stentor.protocols.ipc.config import WorkerConfig

from ...model_config.spec.layer import LayerSpec
from ...model_config.spec.model import ModelSpec
from ..compute.sync_compute import SyncCompute
from ..device.dry import dry_device
from ..families.family import Family, Text
from ..families.setup_parts import ProgressCallback
from ..passes.pass_graphs import advance_all
from .decoder import set_up_family
from .setup import open_family

_ALIKE = 2
"""Layers of each kind that are run; the first has no input from a previous one."""


def precompile(config: WorkerConfig, gpu: str | None, capability: int, folder: Path, progress: ProgressCallback) -> int:
    """Set up a worker on a simulated device and add its kernels to ``folder``; returns how many.

    Block sizes are those of the table of ``gpu``, if there is one. Raises :class:`..errors.SetupError`, the loader's
    errors, and RuntimeError if Triton interprets or there is no C compiler.
    """
    config = msgspec.structs.replace(config, device="cuda")
    made: dict[str, Any] = {}
    with (
        tuned_for(gpu) if gpu else nullcontext(),
        compiling(capability, lambda kernel, _: made.setdefault(kernel.hash, kernel)),
        dry_device() as device,
    ):
        setup = set_up_family(_shortened(open_family(config, "cuda")), config, progress, device)
        while setup.ahead is not None and setup.ahead.advance(busy=False) is not None:
            pass
        compute = setup.runner.compute
        while isinstance(compute, SyncCompute) and advance_all(compute.graphs, busy=False) is not None:
            pass
    return fill(folder, made.values())


def _shortened(family: Family) -> Family:
    """The model with fewer layers, but of every kind, if its weights are dummies."""
    checkpoint = family.checkpoint
    spec = checkpoint.config
    if type(family) is not Text or checkpoint.format != "dummy" or checkpoint.part is not None:
        return family
    if not isinstance(spec, ModelSpec) or spec.per_layer:
        return family
    seen: Counter[LayerSpec] = Counter()
    layers = []
    for layer in spec.layers:
        seen[layer] += 1
        if seen[layer] <= _ALIKE:
            layers.append(layer)
    return Text(replace(checkpoint, config=replace(spec, layers=tuple(layers))), "cuda")
