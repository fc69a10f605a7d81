"""Cache groups of a worker, as the engine allocates them. This is their only declaration."""

from collections.abc import Iterable
from typing import Literal

import msgspec

CacheKind = Literal["full", "window", "latent", "state", "cross"]
"""``full``, ``window`` and ``latent`` are *paged*: blocks of the worker's one pool, with a block table for each group
of a row. ``state``: slots for recurrent states. ``cross``: encoded media."""

InputKind = Literal["audio", "tokens", "picture"]
"""Audio, a text as int32 token ids, or a processor's output for a picture."""


class CacheGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Layers that keep alike."""

    kind: CacheKind
    window: int = 0
    """Paged kinds: tokens that a position sees; 0 means all before it. ``cross``: embeddings of a request's one span,
    which all positions see; 0 if spans stand in the prompt, any number of them."""
    capacity: int = 0
    """``state``: number of slots. ``cross``: embeddings of all media together. Paged kinds share ``num_blocks``."""
    sliced: bool = False
    """``cross``: an encoding can be interrupted and continued in a later step (:attr:`.steps.EncodeJob.sliced`)."""
    whole: int = 0
    """``cross``: positions of the longest span whose positions see each other, which is computed in one step; 0: a
    prompt may be cut anywhere."""
    whole_prompts: bool = False
    """``cross``: such a span is a prompt, not one medium of it."""
    joined: bool = False
    """``cross``: such a span reaches from a prompt's first medium to its last, whose positions see each other."""
    by_prompt: bool = False
    """Paged kinds: what is cached of an answer depends on where its prompt ends, so that no prefix is reused."""
    inputs: InputKind = "audio"
    """``cross`` with a :attr:`window`: what a request's one span holds."""
    lasting: bool = False
    """``cross``: a medium stands at one token, and is read by all positions from there to the next medium behind text,
    or to the end. ``capacity`` then is a number of media."""

    @property
    def is_paged(self) -> bool:
        return self.kind in ("full", "window", "latent")


FULL = CacheGroup("full")


class HostSizes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the host tier of the prefix cache has room for: of each worker, where several split a model."""

    blocks: int = 0
    block_bytes: int = 0
    """Of all workers together."""
    states: int = 0
    """Recurrent states."""
    state_bytes: int = 0
    """Bytes of one recurrent state."""


NO_HOST = HostSizes()


def windows_of(groups: Iterable[CacheGroup]) -> tuple[int, ...]:
    """Window of each paged group. Without paged groups, one window of 0: blocks then only limit concurrency."""
    return tuple(group.window for group in groups if group.is_paged) or (0,)


def group_of(groups: Iterable[CacheGroup], kind: CacheKind) -> CacheGroup | None:
    """The group of a kind of which there is at most one."""
    return next((group for group in groups if group.kind == kind), None)
