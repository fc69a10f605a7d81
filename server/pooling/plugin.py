"""Code of the operator's between a client's data and a model: ``task: plugin`` of ``/pooling``.

A package offers it as an entry point of the group :data:`GROUP`, a class that is made without arguments, and
``--pooling-plugin`` chooses it by name.
"""

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import anyio
import msgspec

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.processes.logs import trace_without_messages
from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.ipc.pooling import Pooled, PoolingTask

from ..common.errors import ServerError

logger = logging.getLogger(__name__)

T = TypeVar("T")

GROUP: Final = "stentor.pooling_plugins"


class PluginPrompt(msgspec.Struct, frozen=True):
    """A prompt of the model."""

    text: str | list[int]
    """Or its token ids, which are taken as they are; all prompts of a request are of one kind."""


@runtime_checkable
class PoolingPlugin(Protocol):
    """Both methods are called in threads, for several requests at a time."""

    task: PoolingTask | None
    """The model's task for the prompts; None: its own task."""

    def prompts(self, data: Any) -> Sequence[PluginPrompt]:
        """Prompts for ``data``, the client's JSON. Raises ValueError for unsupported data; the client gets the
        message."""

    def answer(self, data: Any, vectors: "Sequence[memoryview[float]]") -> Any:
        """The client's answer as JSON. ``vectors`` are float32 [rows, columns], one for each prompt, in order; they
        have one row unless the task is of tokens. Raises ValueError as :meth:`prompts`."""


class PluginFailed(ServerError):
    """The plugin broke."""

    code = "plugin_failed"

    def __init__(self) -> None:
        super().__init__("The server's plugin failed on this request; the operator finds the reason in the log.")


def open_plugin(name: str) -> PoolingPlugin:
    """Raises :class:`CheckpointError`, with one line for the operator."""
    found = {each.name: each for each in entry_points(group=GROUP)}
    if name not in found:
        there = ", ".join(sorted(found)) or "none"
        raise CheckpointError(
            f"--pooling-plugin {name}: no installed package offers it as an entry point of {GROUP}; there are: {there}"
        )
    try:
        made = found[name].load()()
    except Exception as error:  # foreign code may raise anything
        raise CheckpointError(
            f"--pooling-plugin {name}: {found[name].value} cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, PoolingPlugin):
        raise CheckpointError(
            f"--pooling-plugin {name}: {found[name].value} must have a task, prompts(data) and answer(data, vectors)"
        )
    return made


async def prompts_of(plugin: PoolingPlugin, data: Any) -> list[str | list[int]]:
    """Raises BadRequest for data that the plugin refuses, and PluginFailed."""

    def ask() -> list[str | list[int]]:
        texts = [prompt.text for prompt in plugin.prompts(data)]
        if {type(text) for text in texts} not in (set(), {str}, {list}):
            raise TypeError("a plugin's prompts are texts, or lists of token ids, and not both")
        return texts

    return await _run(ask)


async def answer_of(plugin: PoolingPlugin, data: Any, pooled: Sequence[Pooled]) -> msgspec.Raw:
    """JSON that has been written. Raises as :func:`prompts_of`."""
    return await _run(lambda: msgspec.Raw(encode(plugin.answer(data, [_matrix(each) for each in pooled]))))


async def _run(ask: Callable[[], T]) -> T:
    try:
        return await anyio.to_thread.run_sync(ask)
    except ValueError as error:
        raise BadRequest(f"`data`: {error}", "data", "invalid_value") from error
    except Exception as error:  # foreign code may raise anything
        logger.error("the pooling plugin failed", extra={"trace": trace_without_messages(error)})
        raise PluginFailed from None


def _matrix(pooled: Pooled) -> "memoryview[float]":
    flat = memoryview(pooled.data)
    if not pooled.rows or not pooled.columns:
        return flat.cast("f")
    return flat.cast("f", (pooled.rows, pooled.columns))
