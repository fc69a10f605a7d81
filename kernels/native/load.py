"""Loads the native library into this process, once, and binds its functions."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .build import THIS_CPU, BuildError, ProgressCallback, build


@dataclass(frozen=True)
class NativeLibrary:
    """The loaded library and where it came from."""

    path: Path
    handle: ctypes.CDLL


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
    """Builds (or finds) and loads the library. The first call of a process decides; later ones return its result.

    Args as in :func:`.build.build`. Returns None where there is none; :func:`unavailable_reason` says why.
    """
    with _lock:
        if not _state.attempted:
            try:
                _state.library = load(build(cache_dir=cache_dir, progress=progress, compiler=compiler, march=march))
            except BuildError as error:
                _state.reason = str(error)
            _state.attempted = True
        return _state.library


def library() -> NativeLibrary | None:
    """The loaded library, built with the defaults if :func:`prepare` has not run; None where there is none."""
    return _state.library if _state.attempted else prepare()


def unavailable_reason() -> str | None:
    """Why there is no native library, in one line; None when there is one."""
    library()
    return _state.reason


def load(path: Path) -> NativeLibrary:
    """Loads one built library. Raises BuildError where the file is damaged, and removes it then."""
    try:
        return NativeLibrary(path, ctypes.CDLL(str(path)))
    except OSError as error:
        path.unlink(missing_ok=True)
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
        """The callable, which checks argument types and releases the GIL; None without a library."""
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
        """Calls it, where there is a library."""
        bound = self.bind()
        assert bound is not None
        return bound(*arguments)


def by_dtype(name: str, *argtypes: type[Any], restype: type[Any] | None = None) -> dict[torch.dtype, NativeFunction]:
    """An operation's functions for float32 and bfloat16, which C++ calls ``NAME_f32`` and ``NAME_bf16``."""
    suffixes = {torch.float32: "f32", torch.bfloat16: "bf16"}
    return {dtype: NativeFunction(f"{name}_{end}", *argtypes, restype=restype) for dtype, end in suffixes.items()}


def pointers(*tensors: torch.Tensor | None) -> Iterator[int | None]:
    """Where tensors lie, for a native function; None where there is none."""
    return (None if tensor is None else tensor.data_ptr() for tensor in tensors)


_own_threads: int | None = None


def set_threads(count: int | None) -> int | None:
    """How many threads native kernels may use in this process; None: as many as torch. Returns what it was."""
    global _own_threads
    before, _own_threads = _own_threads, count
    return before


def threads() -> int:
    """Threads that a native kernel may use in the calling thread: what ``torch.set_num_threads`` set, unless
    :func:`set_threads` has said otherwise.

    A process whose steps are native kernels and many small operations of torch in turn gives torch one thread: its
    own would wait for their next work in a loop, on the cores that ours compute on, and an operation of microseconds
    would take the scheduler's time slice.
    """
    return torch.get_num_threads() if _own_threads is None else _own_threads
