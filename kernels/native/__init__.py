"""The C++ half of the kernels: every ``kernels/**/native*.cpp`` in one shared library, reached through ctypes.

An operation declares its functions once::

    _function = NativeFunction("stentor_name", ctypes.c_void_p, ctypes.c_int64)
    _function.bind()                 # None: no library, take the reference
    _function(x.data_ptr(), x.numel())

Start-up calls :func:`prepare`, with a progress callback, before the first operation.
"""

from .build import BuildError, ProgressCallback, default_cache_dir
from .load import (
    NativeFunction,
    NativeLibrary,
    by_dtype,
    library,
    pointers,
    prepare,
    set_threads,
    threads,
    unavailable_reason,
)

__all__ = [
    "BuildError",
    "NativeFunction",
    "NativeLibrary",
    "ProgressCallback",
    "by_dtype",
    "default_cache_dir",
    "library",
    "pointers",
    "prepare",
    "set_threads",
    "threads",
    "unavailable_reason",
]
