"""Set-up for adapters: first steps and memory."""

from collections.abc import Sequence

import msgspec

from stentor.protocols.ipc.actors import MemoryLine
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.steps import StepPlan

from ...layers.linear.adapters import AdapterPlaces, TableSizes
from ..errors import SetupError
from ..memory import format_bytes


def as_adapted(plans: Sequence[StepPlan]) -> list[StepPlan]:
    """Copies of the steps for rows with an adapter, whose slot is still empty."""

    def adapted(plan: StepPlan) -> StepPlan:
        new = [msgspec.structs.replace(row, adapter=0) for row in plan.new]
        return msgspec.structs.replace(plan, new=new, freed=[row.slot for row in new])

    return [adapted(plan) for plan in plans]


def places_for(config: WorkerConfig, *, on_device: bool) -> AdapterPlaces | None:
    """Collects the places of a model to which adapters can be attached; None if they are disabled."""
    if not config.enable_lora:
        return None
    return AdapterPlaces(TableSizes(config.max_loras, config.max_lora_rank) if on_device else None)


def max_adapters(config: WorkerConfig) -> int:
    """Most adapters in memory at a time."""
    return max(config.max_loras, config.max_cpu_loras) if config.enable_lora else 0


def adapter_bytes(config: WorkerConfig, places: AdapterPlaces | None) -> int:
    """Most bytes of their loose parts on the model's device. Tables are not counted: they exist from the beginning."""
    return 0 if places is None else max_adapters(config) * places.loose_bytes(config.max_lora_rank)


def check_room(config: WorkerConfig, places: AdapterPlaces, weights: int, free: int, where: str) -> None:
    """Raise :class:`..errors.SetupError` if ``weights`` fit into ``free`` bytes alone, but not together with the
    adapters."""
    taken = places.table_bytes + adapter_bytes(config, places)
    if weights <= free < weights + taken:
        raise SetupError(
            f"{max_adapters(config)} adapters of rank {config.max_lora_rank} may take {format_bytes(taken)}, and of "
            f"{format_bytes(free)} that {where} has free weights take {format_bytes(weights)}: lower --max-lora-rank, "
            "--max-cpu-loras or --max-loras"
        )


def adapter_lines(config: WorkerConfig, places: AdapterPlaces | None) -> list[MemoryLine]:
    """The memory of adapters; empty if they are disabled."""
    if places is None:
        return []
    most, rank = max_adapters(config), config.max_lora_rank
    taken, what = adapter_bytes(config, places), f"up to {most} of rank {rank}, as they are loaded"
    if places.tables is not None:
        on_host = format_bytes(most * (places.nbytes(rank) - places.loose_bytes(rank)))
        what = f"{config.max_loras} of rank {rank}; up to {most} take {on_host} of the host, as they are loaded"
    return [MemoryLine("adapters", places.table_bytes + taken, what)]
