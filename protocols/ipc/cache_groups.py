"""What a worker keeps of what it has computed, as the engine hands it out: the one declaration of it."""

from collections.abc import Iterable
from typing import Literal

import msgspec

CacheKind = Literal["full", "window", "latent", "state", "cross"]
"""``full``, ``window`` and ``latent`` are *paged*: blocks of the worker's one pool, with a block table for each group
of a row. ``state``: slots for recurrent states. ``cross``: encoded media."""


class CacheGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Layers that keep alike."""

    kind: CacheKind
    window: int = 0
    """Of a paged kind: tokens that a position sees, 0 is all before it. Of ``cross``: embeddings of the one span of a
    request, which all its positions see; 0 where spans stand in the prompt, any number of them."""
    capacity: int = 0
    """Of ``state``: slots. Of ``cross``: embeddings, of all media together. Paged kinds share ``num_blocks``."""
    sliced: bool = False
    """Of ``cross``: an encoding can be stopped and go on in a later step (:attr:`.steps.EncodeJob.sliced`)."""
    whole: int = 0
    """Of ``cross``: positions of the longest span, where these see each other and so are computed in one step; 0: a
    prompt is cut anywhere."""

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
    """As of blocks."""


NO_HOST = HostSizes()


def windows_of(groups: Iterable[CacheGroup]) -> tuple[int, ...]:
    """Of each paged group the tokens that are seen. Where there is none, blocks only bound what runs at once, as those
    of one group would."""
    return tuple(group.window for group in groups if group.is_paged) or (0,)


def group_of(groups: Iterable[CacheGroup], kind: CacheKind) -> CacheGroup | None:
    """The group of a kind of which there is at most one."""
    return next((group for group in groups if group.kind == kind), None)
