"""Events of the prefix cache for routers: vLLM's messages, in msgpack."""

import msgspec


class KvEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag=True, gc=False):
    """One change of the set of cached blocks."""


class BlockStored(KvEvent, frozen=True, omit_defaults=True, tag=True, gc=False):
    """Full blocks can be found, one behind the other."""

    block_hashes: list[int]
    """Unsigned 64 bits each."""
    parent_block_hash: int | None
    """Of the block before the first; None: they begin the prompt."""
    token_ids: list[int]
    """Of all these blocks."""
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    """For each block what else it stands for besides tokens: the salt."""


class BlockRemoved(KvEvent, frozen=True, omit_defaults=True, tag=True, gc=False):
    """These blocks cannot be found any more."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(KvEvent, frozen=True, omit_defaults=True, tag=True, gc=False):
    """No block can be found any more."""


class KvEventBatch(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What changed in one round of an engine, in order."""

    ts: float
    """Seconds since the epoch."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None
