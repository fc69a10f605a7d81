"""The second tier of the prefix cache, in host memory: its size, and its division into blocks and recurrent states."""

import torch
from msgspec.structs import replace

from stentor.protocols.ipc.actors import MemoryLine
from stentor.protocols.ipc.cache_groups import HostSizes
from stentor.protocols.ipc.config import WorkerConfig

from ..errors import SetupError
from ..memory import available_memory, format_bytes
from .audio import StreamedTranscription
from .family import Family, Sizes, Text

_OPTION = "--kv-offloading-size"


def check_host_tier(config: WorkerConfig, family: Family, taken: int = 0) -> None:
    """Raises :class:`..errors.SetupError` if the model caches nothing that the tier could hold, or if the host's free
    memory, less ``taken`` bytes that the worker still takes of it, is too small."""
    if config.kv_offloading_size is None:
        return
    if not (family.groups or (isinstance(family, Text) and family.spec.states)):
        raise SetupError(f"{_OPTION}: the model keeps nothing of a token; leave it out")
    if isinstance(family, StreamedTranscription):
        raise SetupError(f"{_OPTION}: streamed audio has no prefixes that others could share; leave it out")
    room = available_memory() // config.workers - taken
    if _share(config) > room:
        raise SetupError(
            f"{_OPTION}: {format_bytes(config.kv_offloading_size)} do not fit, this host has "
            f"{format_bytes(max(room, 0) * config.group_size)} left for it: lower it"
        )


def device_bytes(sizes: Sizes) -> int:
    """Bytes of the device's caches: blocks and recurrent states."""
    return sizes.blocks * sizes.block_bytes + sizes.num_states * sizes.state_bytes


def with_host(config: WorkerConfig, sizes: Sizes) -> Sizes:
    """``sizes`` with the host tier, divided between blocks and recurrent states in the proportion of the device's
    caches. Raises :class:`..errors.SetupError` if there is no room for one of each."""
    if config.kv_offloading_size is None:
        return sizes
    share, block, state = _share(config), sizes.block_bytes, sizes.state_bytes
    blocks = share * sizes.blocks * block // device_bytes(sizes) // block if block else 0
    states = (share - blocks * block) // state if state else 0
    if (block and not blocks) or (state and not states):
        raise SetupError(
            f"{_OPTION}: {format_bytes(config.kv_offloading_size)} are too little for blocks of "
            f"{format_bytes(max(block, state))}; a number alone is bytes, 4GiB is a size"
        )
    return replace(sizes, host=HostSizes(blocks, block, states, state))


def host_lines(config: WorkerConfig, host: HostSizes, device: torch.device) -> list[MemoryLine]:
    """The line of the start-up summary about the tier; none without a tier."""
    held = [f"{host.blocks} blocks of {config.block_size} tokens"] if host.blocks else []
    held += [f"{host.states} recurrent states"] if host.states else []
    if not held:
        return []
    taken = "page-locked" if device.type == "cuda" else "taken as it fills"
    nbytes = host.blocks * host.block_bytes + host.states * host.state_bytes
    return [MemoryLine("KV offload", nbytes, f"{' and '.join(held)}, for prefixes, in host memory; {taken}")]


def _share(config: WorkerConfig) -> int:
    """This worker's bytes of the tier: the workers of a group divide it evenly."""
    return (config.kv_offloading_size or 0) // config.group_size
