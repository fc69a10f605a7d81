"""What a caller forces in its context, in place of what operations would choose."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from .tuning import Config
    from .variants import Choice

Launch = Callable[[Any, Sequence[Any], "Config", dict[str, Any]], None]
"""Takes a kernel, its arguments in order, its compile configuration, and its arguments by name."""


class Forced(NamedTuple):
    variant: "Choice" = "auto"
    """The variant of operations that are called with ``auto``."""
    launch: Launch | None = None
    """Receives launches in place of the GPU: lets tests compile kernels without one."""
    operation: str | None = None
    config: "Config | None" = None
    """The block sizes of ``operation``, whatever the tables say."""
    untuned: bool = False
    """The other operations use their launchers' default block sizes."""
    gpu: str | None = None
    """The GPU whose table of block sizes is used; None: the one present."""


NOTHING: Final = Forced()
forced: ContextVar[Forced] = ContextVar("stentor_forced", default=NOTHING)
"""One for everything, so that a launch asks once whether all is as usual."""


@contextmanager
def forcing(**changes: Any) -> Iterator[None]:
    """Within the block, these fields of :class:`Forced` have other values in this context."""
    token = forced.set(forced.get()._replace(**changes))
    try:
        yield
    finally:
        forced.reset(token)
