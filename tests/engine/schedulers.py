"""What a scheduler is made of, where there is no worker."""

from stentor.protocols.ipc.actors import WorkerReady
from stentor.protocols.ipc.cache_groups import FULL, NO_HOST, CacheGroup, HostSizes
from stentor.protocols.ipc.config import EngineConfig, SchedulerConfig, StepLimits, WorkerConfig
from stentor.protocols.ipc.inputs import StreamShape

CONFIG = EngineConfig(WorkerConfig("none"), SchedulerConfig(target_itl=0.0))
"""Without a target time: plans must not depend on how long a machine takes for steps."""


def ready_of(
    *,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    groups: tuple[CacheGroup, ...] = (FULL,),
    stream: StreamShape | None = None,
    host: HostSizes = NO_HOST,
    max_mixed_prefill_tokens: int | None = None,
    max_prefill_chunk: int | None = None,
    max_admitted_tokens: int = 0,
    max_encodings: int = 0,
    max_mixed_encodings: int = 0,
    max_drafts: int = 0,
) -> WorkerReady:
    """What a worker of these sizes says; None is a limit no smaller than the step's."""
    limits = StepLimits(
        block_size,
        max_num_seqs,
        max_num_batched_tokens,
        max_num_batched_tokens if max_mixed_prefill_tokens is None else max_mixed_prefill_tokens,
        max_num_batched_tokens if max_prefill_chunk is None else max_prefill_chunk,
        max_encodings=max_encodings,
        max_mixed_encodings=max_mixed_encodings,
        max_admitted_tokens=max_admitted_tokens,
        max_drafts=max_drafts,
    )
    return WorkerReady(num_blocks, max_model_len, [], [], limits, groups, stream, host=host)
