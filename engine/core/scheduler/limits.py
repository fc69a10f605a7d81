"""The limits of a scheduler, and the refusals of requests that exceed them."""

import math

import msgspec

from stentor.protocols.ipc.actors import Submit, WorkerReady
from stentor.protocols.ipc.cache_groups import group_of
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.inputs import StreamShape

from ..request import Request
from .kv_cache_manager import KVCacheManager
from .refusals import (
    input_refusal_of,
    pooling_refusal_of,
    refusal_of,
    spans_refusal_of,
    stream_refusal_of,
    too_long,
)
from .step import whole_row_bytes


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of :class:`.scheduler.Scheduler`; in tokens unless stated otherwise."""

    max_model_len: int
    max_num_batched_tokens: int
    max_mixed_prefill_tokens: int
    """Prompt tokens of a step with rows that decode."""
    max_prefill_chunk: int
    """Tokens of one prompt in a step."""
    max_admitted_tokens: int
    """Tokens of prompts that begin in one step."""
    max_encodings: int
    """Media that one step encodes."""
    max_mixed_encodings: int
    """Media that a step with decoding rows encodes."""
    max_drafts: int
    max_plan_bytes: int
    """Bytes of the rows that enter in one step."""
    max_frame: int
    """Bytes of one row in a step."""
    aging_seconds: float
    target_itl: float
    """Seconds that a step with rows that decode is to take at most; 0: any."""
    stream: StreamShape | None
    max_loras: int
    """Adapters that rows may use at a time."""
    is_pooling: bool
    sees_all: bool
    """Whether attention is bidirectional, so that a prompt is one chunk."""

    @classmethod
    def of(cls, ready: WorkerReady, config: EngineConfig, *, max_plan_bytes: int, max_frame: int) -> "Limits":
        """Raises ValueError for limits that no scheduler can work with."""
        step, worker = ready.limits, config.worker
        max_encodings = step.max_encodings or ready.max_model_len
        pools = worker.is_pooling or ready.pools
        limits = cls(
            max_model_len=ready.max_model_len,
            max_num_batched_tokens=step.max_num_batched_tokens,
            max_mixed_prefill_tokens=step.max_mixed_prefill_tokens,
            max_prefill_chunk=step.max_prefill_chunk,
            max_admitted_tokens=step.max_admitted_tokens or step.max_num_batched_tokens,
            max_encodings=max_encodings,
            max_mixed_encodings=step.max_mixed_encodings or max_encodings,
            max_drafts=step.max_drafts,
            max_plan_bytes=max_plan_bytes,
            max_frame=max_frame,
            aging_seconds=config.scheduler.priority_aging_seconds,
            target_itl=config.scheduler.target_itl,
            stream=ready.stream,
            max_loras=worker.max_loras if worker.enable_lora else 0,
            is_pooling=pools,
            sees_all=pools and not any(group.is_paged for group in ready.groups),
        )
        limits._check(ready)
        return limits

    def _check(self, ready: WorkerReady) -> None:
        for name, value in (
            ("block_size", ready.limits.block_size),
            ("max_num_seqs", ready.limits.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len),
            ("max_mixed_prefill_tokens", self.max_mixed_prefill_tokens),
            ("max_prefill_chunk", self.max_prefill_chunk),
            ("max_admitted_tokens", self.max_admitted_tokens),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.max_drafts < 0:
            raise ValueError(f"max_drafts is {self.max_drafts}; it must be at least 0")
        cross = group_of(ready.groups, "cross")
        if cross is not None and not max(1, cross.window) <= cross.capacity:
            raise ValueError(f"an encoder cache of {cross.capacity} embeddings has no room for any media")
        most, beside = self.max_encodings, self.max_mixed_encodings
        if cross is not None and min(most, beside) < 1:
            raise ValueError(f"max_encodings is {most} and {beside} beside rows that decode; both must be at least 1")
        if not math.isfinite(self.aging_seconds) or self.aging_seconds < 0:
            raise ValueError(
                f"priority_aging_seconds is {self.aging_seconds}; it must be a finite number of seconds, 0 or more"
            )
        if not math.isfinite(self.target_itl) or self.target_itl < 0:
            raise ValueError(f"target_itl is {self.target_itl}; it must be a finite number of seconds, 0 or more")

    def refusal_of(self, submit: Submit, kv_cache: KVCacheManager) -> str | None:
        """Why a request can never run; None if it can."""
        why = refusal_of(submit, self.max_model_len)
        why = why or input_refusal_of(submit, kv_cache.cross, self.max_num_batched_tokens)
        why = why or stream_refusal_of(submit, self.stream)
        why = why or pooling_refusal_of(
            submit, self.max_num_batched_tokens, is_pooling=self.is_pooling, sees_all=self.sees_all
        )
        if submit.adapter is not None and not self.max_loras:
            why = why or f"the model has no adapter {submit.adapter.name!r}: it is served without any"
        return why or _too_long(min(len(submit.prompt) + submit.params.max_tokens, self.max_model_len), kv_cache)

    def frame_refusal_of(self, request: Request, kv_cache: KVCacheManager) -> str | None:
        """Why no step can hold a row of the request; None if one can."""
        needed = whole_row_bytes(request.leader, kv_cache)
        if needed <= self.max_frame:
            return None
        return f"the request may take {needed} bytes of a step, which holds {self.max_frame}: make it smaller"


def kv_cache_refusal_of(request: Request, kv_cache: KVCacheManager) -> str | None:
    """Why an accepted request does not fit into a new worker's memory; None if it does."""
    if (why := _too_long(request.limit_len, kv_cache)) is not None or request.input is not None:
        return why
    return spans_refusal_of(request.media.spans, kv_cache.cross)


def _too_long(needed: int, kv_cache: KVCacheManager) -> str | None:
    num_blocks = kv_cache.pool.num_blocks
    return None if kv_cache.needs.of(needed) <= num_blocks else too_long(needed, kv_cache.needs.longest(num_blocks))
