"""The kernels with emulated tiles: a library of its own, which the product does not build."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from stentor.kernels.native.build import build, find_sources
from stentor.kernels.native.load import NativeFunction, NativeLibrary, load

UNITS = ("linear_packed", "native", "attention", "latent_attention", "moe", "forward", "low_rank", "sampling")
"""Folders that are compiled: operations on tiles, and their callers."""
COMPILED_SOON = "-O1"
"""Of what is compiled for the tests alone, in half of the time that it takes for speed: bits do not depend on it."""
OPTIONS = ("-DSTENTOR_EMULATED_TILES", COMPILED_SOON)
IS_X86 = platform.machine() == "x86_64"


@cache
def emulated() -> NativeLibrary:
    """Kept in the cache as the product's own is: it is compiled where a source has changed."""
    sources = [path for path in find_sources() if path.parent.name in UNITS]
    assert {path.parent.name for path in sources} == set(UNITS)
    return load(build(sources=sources, options=OPTIONS))


@contextmanager
def calls_to(library: NativeLibrary) -> Iterator[None]:
    """Within the block, functions that this library has are called there."""
    original = NativeFunction.bind
    bound: dict[str, Callable[..., Any]] = {}

    def bind(self: NativeFunction) -> Callable[..., Any] | None:
        if self.name not in bound:
            function = getattr(library.handle, self.name, None)
            if function is None:
                return original(self)
            function.argtypes, function.restype = list(self._argtypes), self._restype
            bound[self.name] = function
        return bound[self.name]

    NativeFunction.bind = bind  # type: ignore[method-assign]
    try:
        yield
    finally:
        NativeFunction.bind = original  # type: ignore[method-assign]
