"""What setting up takes where adapters are served: the first steps, and memory."""

from collections.abc import Sequence

import msgspec

from stentor.protocols.ipc.actors import MemoryLine
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import StepPlan

from ..layers.adapters import AdapterPlaces


def as_adapted(plans: Sequence[StepPlan]) -> list[StepPlan]:
    """The same steps once more, as rows with adapters are computed; there is none yet in the slot that they name."""

    def adapted(plan: StepPlan) -> StepPlan:
        new = [msgspec.structs.replace(row, adapter=0) for row in plan.new]
        return msgspec.structs.replace(plan, new=new, freed=[row.slot for row in new])

    return [adapted(plan) for plan in plans]


def max_adapters(config: WorkerConfig) -> int:
    """That are in memory at a time, at most."""
    return max(config.max_loras, config.max_cpu_loras) if config.enable_lora else 0


def adapter_bytes(config: WorkerConfig, places: AdapterPlaces | None) -> int:
    """That they take then, at most."""
    return 0 if places is None else max_adapters(config) * places.nbytes(config.max_lora_rank)


def adapter_lines(config: WorkerConfig, places: AdapterPlaces | None) -> list[MemoryLine]:
    """Of adapters, where some are served."""
    if places is None:
        return []
    most, rank = max_adapters(config), config.max_lora_rank
    return [MemoryLine("adapters", adapter_bytes(config, places), f"up to {most} of rank {rank}, as they are loaded")]
