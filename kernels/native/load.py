"""Loads the native library into this process, once, and binds its functions."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .build import THIS_CPU, BuildError, ProgressCallback, build
from .prebuilt import find_prebuilt


@dataclass(frozen=True)
class NativeLibrary:
    """The loaded library and where it came from."""

    path: Path
    handle: ctypes.CDLL
    is_prebuilt: bool = False


@dataclass
class _State:
    attempted: bool = False
    library: NativeLibrary | None = None
    reason: str | None = None


_state = _State()
_lock = threading.Lock()


def prepare(
    cache_dir: Path | None = None,
    progress: ProgressCallback | None = None,
    compiler: str | None = None,
    march: str = THIS_CPU,
) -> NativeLibrary | None:
    """Builds (or finds) and loads the library. The first call in a process decides; later ones return its result.

    Args as in :func:`.build.build`. For this CPU, a library that was built ahead is taken if there is one. Returns None
    if there is no library; :func:`unavailable_reason` says why.
    """
    with _lock:
        if not _state.attempted:
            try:
                ahead = find_prebuilt() if march == THIS_CPU and compiler is None else None
                path = ahead or build(cache_dir=cache_dir, progress=progress, compiler=compiler, march=march)
                _state.library = replace(load(path), is_prebuilt=path == ahead)
            except BuildError as error:
                _state.reason = str(error)
            _state.attempted = True
        return _state.library


def library() -> NativeLibrary | None:
    """Returns the library, built with the defaults if :func:`prepare` has not run; None if there is none."""
    return _state.library if _state.attempted else prepare()


def unavailable_reason() -> str | None:
    """Returns why there is no native library, in one line; None if there is one."""
    library()
    return _state.reason


def load(path: Path) -> NativeLibrary:
    """Loads one built library. If the file is damaged, removes it and raises BuildError."""
    try:
        return NativeLibrary(path, ctypes.CDLL(str(path)))
    except OSError as error:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            raise BuildError(f"cannot load the native kernels: {error}; remove {path}") from error
        raise BuildError(f"cannot load the native kernels: {error}; the file was removed, start again") from error


class NativeFunction:
    """One exported C function: its name and argument types, bound on first use.

    ``function = NativeFunction("stentor_rms_norm_f32", ctypes.c_void_p, ctypes.c_int64)``
    """

    __slots__ = ("_argtypes", "_bound", "_resolved", "_restype", "name")

    def __init__(self, name: str, *argtypes: type[Any], restype: type[Any] | None = None) -> None:
        self.name = name
        self._argtypes = argtypes
        self._restype = restype
        self._resolved = False
        self._bound: Callable[..., Any] | None = None

    def bind(self) -> Callable[..., Any] | None:
        """Returns the callable, which checks argument types and releases the GIL; None without a library."""
        if not self._resolved:
            found = library()
            if found is not None:
                function = getattr(found.handle, self.name)
                function.argtypes = list(self._argtypes)
                function.restype = self._restype
                self._bound = function
            self._resolved = True
        return self._bound

    def __call__(self, *arguments: object) -> Any:
        """Calls the function; there must be a library."""
        bound = self.bind()
        assert bound is not None
        return bound(*arguments)


def by_dtype(name: str, *argtypes: type[Any], restype: type[Any] | None = None) -> dict[torch.dtype, NativeFunction]:
    """Returns an operation's functions for float32 and bfloat16, which C++ calls ``NAME_f32`` and ``NAME_bf16``."""
    suffixes = {torch.float32: "f32", torch.bfloat16: "bf16"}
    return {dtype: NativeFunction(f"{name}_{end}", *argtypes, restype=restype) for dtype, end in suffixes.items()}


def pointers(*tensors: torch.Tensor | None) -> Iterator[int | None]:
    """Returns the addresses of tensors for a native function; None for None."""
    return (None if tensor is None else tensor.data_ptr() for tensor in tensors)


_own_threads: int | None = None


def set_threads(count: int | None) -> int | None:
    """Sets how many threads native kernels may use in this process; None: as many as torch. Returns the value
    before."""
    global _own_threads
    before, _own_threads = _own_threads, count
    return before


def threads() -> int:
    """Returns the threads that a native kernel may use in the calling thread: ``torch.get_num_threads()``, unless
    :func:`set_threads` has set another number.

    A process whose steps alternate native kernels and many small torch operations gives torch one thread. torch's own
    threads would busy-wait on the cores that ours compute on, and an operation of microseconds would take a scheduler's
    time slice.
    """
    return torch.get_num_threads() if _own_threads is None else _own_threads
