"""Adapters: low-rank additions to a model's products, which a request may name in place of the model."""

import msgspec


class AdapterRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One adapter as it was when its name was given to it."""

    number: int
    """Counted up by the client process and never reused: another version of the same files has another."""
    name: str
    """For logs and messages."""
    path: str
    """Path of its folder, below ``root`` if that is set."""
    root: str = ""
    """The folder that nothing of it may lead out of; empty where the operator has named ``path`` itself."""
    identity: str = ""
    """Which files they were, see :func:`stentor.engine.loading.adapter_files.open_adapter`; others are refused."""


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="load_adapter", gc=False):
    """To a worker: read an adapter into memory beside the steps, and answer with :class:`AdapterLoaded`."""

    adapter: AdapterRef


class DropAdapter(msgspec.Struct, frozen=True, array_like=True, tag="drop_adapter", gc=False):
    """To a worker: no row will have this adapter before it is loaded again."""

    number: int


class ReadsAdapters(msgspec.Struct, frozen=True, array_like=True, tag="reads_adapters", gc=False):
    """From a worker, once a second between steps: it lives, and has not read all adapters that it was told to load."""


class AdapterLoaded(msgspec.Struct, frozen=True, array_like=True, tag="adapter_loaded", gc=False):
    """From a worker: rows may have this adapter from now on, or with ``error`` none can."""

    number: int
    error: str = ""
    missing: bool = False
    """Whether the error is that the files do not exist."""


class WarmAdapter(msgspec.Struct, frozen=True, array_like=True, tag="warm_adapter", gc=False):
    """To an engine: load an adapter before any request names it, and answer with :class:`AdapterWarm`."""

    ticket: int
    adapter: AdapterRef


class AdapterWarm(msgspec.Struct, frozen=True, array_like=True, tag="adapter_warm", gc=False):
    """From an engine: the answer to :class:`WarmAdapter`."""

    ticket: int
    error: str = ""
    missing: bool = False
