"""Host memory for the prefix cache's second tier: how much is asked for, whether it is there, and the memory itself."""

import torch

from stentor.kernels.native.memory import empty_huge
from stentor.protocols.ipc.actors import MemoryLine
from stentor.protocols.ipc.cache_groups import NO_HOST, HostSizes
from stentor.protocols.ipc.config import WorkerConfig

from .audio_families import StreamedTranscription
from .device import Device
from .errors import SetupError
from .families import Family, Sizes, Text
from .memory import available_memory, format_bytes

_OPTION = "--kv-offloading-size"


def check_host_tier(config: WorkerConfig, family: Family, taken: int = 0) -> None:
    """Raises :class:`.errors.SetupError` where the model has nothing for the tier, or this host no room for it beside
    ``taken`` bytes that are yet to be taken of it."""
    if config.kv_offloading_size is None:
        return
    if not family.groups:
        raise SetupError(f"{_OPTION}: the model keeps no keys and values of a token; leave it out")
    if isinstance(family, StreamedTranscription):
        raise SetupError(f"{_OPTION}: streamed audio has no prefixes that others could share; leave it out")
    if isinstance(family, Text) and family.spec.states:
        raise SetupError(f"{_OPTION}: the model keeps recurrent states, which have no second tier; leave it out")
    room = available_memory() // config.workers - taken
    if share_of(config) > room:
        raise SetupError(
            f"{_OPTION}: {format_bytes(config.kv_offloading_size)} do not fit, this host has "
            f"{format_bytes(max(room, 0) * config.tensor_parallel_size)} left for it: lower it"
        )


def share_of(config: WorkerConfig) -> int:
    """Bytes of this worker."""
    return (config.kv_offloading_size or 0) // config.tensor_parallel_size


def host_sizes(config: WorkerConfig, sizes: Sizes) -> HostSizes:
    """Raises :class:`.errors.SetupError` for less than a block."""
    if config.kv_offloading_size is None:
        return NO_HOST
    blocks = share_of(config) // sizes.block_bytes
    if not blocks:
        raise SetupError(
            f"{_OPTION}: {format_bytes(config.kv_offloading_size)} hold no block of the KV cache, which takes "
            f"{format_bytes(sizes.block_bytes * config.tensor_parallel_size)}; a number alone is bytes, 4GiB is a size"
        )
    return HostSizes(blocks, sizes.block_bytes)


def host_memory(sizes: HostSizes, device: Device | None) -> torch.Tensor | None:
    """As :class:`.caches.BlockCopier` takes it; None where there is no tier. On the host's own cores pages are taken as
    it fills, for a ``device`` all are page-locked. Raises :class:`.errors.SetupError`."""
    if not sizes.blocks:
        return None
    nbytes = sizes.blocks * sizes.block_bytes
    try:
        memory = empty_huge(nbytes) if device is None else device.host_tier(nbytes)
    except (MemoryError, RuntimeError) as error:
        raise SetupError(f"{_OPTION}: {format_bytes(nbytes)} of host memory cannot be had: {error}") from error
    return memory.view(sizes.blocks, sizes.block_bytes)


def host_lines(config: WorkerConfig, sizes: HostSizes, device: Device | None) -> list[MemoryLine]:
    """For the operator, where there is a tier."""
    if not sizes.blocks:
        return []
    taken = "taken as it fills" if device is None else "page-locked"
    what = f"{sizes.blocks} blocks of {config.block_size} tokens in host memory, for prefixes; {taken}"
    return [MemoryLine("KV offload", sizes.blocks * sizes.block_bytes, what)]
