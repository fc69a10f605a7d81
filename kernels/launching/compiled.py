"""A cache of compiled Triton kernels that launches them without Triton's own launcher.

``kernel[grid](...)`` binds and specialises every argument anew, which takes some 20 µs a launch. This module keeps each
compiled kernel under what it depends on and launches it at once. These are the types of the arguments and the constants
(:class:`_Signature`), and what Triton specialises of the values (:meth:`_Signature.key`):

- a tensor: its dtype, and whether its address is a multiple of 16;
- an integer: whether it is 1, whether it is a multiple of 16, and whether it is an int32, int64 or uint64;
- a float, a bool, None: only the type.

``do_not_specialize`` and its variants remove the specialisations they name. A key may distinguish what Triton does not,
never the reverse. Triton launches the first call under each key. It also launches every call if its version is not in
:data:`KNOWN_VERSIONS`, or if an argument is of another kind. Triton's launch hooks are not called.

All use of Triton's private interfaces outside tests is in this module.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from operator import attrgetter, itemgetter, or_
from typing import Any, Final, NamedTuple

import torch

from ..tuning import Config

logger = logging.getLogger(__name__)

KNOWN_VERSIONS: Final = ("3.6", "3.7", "3.8", "3.9")
"""Triton versions whose sources have been checked to allow launching kernels this way."""
MOST_KEYS: Final = 4096
"""The most keys kept per signature; at the limit all are dropped. Keys hold integers by value."""

Start = Callable[[int, int, int, int, Sequence[Any]], None]
"""Launches a kernel, given a grid, a stream and the kernel's arguments, with tensors as addresses."""

_data_ptr = torch.Tensor.data_ptr
_dtype = attrgetter("dtype")
_LEAST_INT32, _MOST_INT32, _MOST_INT64 = -(1 << 31), (1 << 31) - 1, (1 << 63) - 1


class ReadyKernel(NamedTuple):
    """A compiled kernel ready to launch."""

    start: Start
    tail: list[Any]
    """The constants, which follow the arguments."""
    driver: Any
    device: int


class Launcher:
    """The compiled specialisations of one kernel."""

    def __init__(self, kernel: Any) -> None:
        """``kernel``: a ``triton.jit`` function."""
        self._kernel = kernel
        self._signatures: dict[tuple[Any, ...], _Signature | None] = {}

    def start(
        self, grid: Sequence[int], args: Sequence[Any], config: Config, constants: Mapping[str, Any]
    ) -> "ReadyKernel | None":
        """Launches ``kernel[grid](*args, **sizes and options of config, **constants)``. Returns what was launched, or
        None if Triton has to launch such calls."""
        values = tuple(constants.values())
        kind = (config, *map(type, args), *constants, *values, *map(type, values))
        try:
            signature = self._signatures[kind]
        except KeyError:
            signature = self._signatures[kind] = _Signature.of(self._kernel, args, config, constants)
        if signature is None:
            start_slowly(self._kernel, grid, args, config, constants)
            return None
        driver = _drivers().active
        device = driver.get_current_device()
        addresses = list(map(_data_ptr, signature.take_tensors(args)))
        key = device, *signature.key(args, addresses)
        start = signature.starts.get(key)
        if start is None:
            start = signature.known(key)
            if start is None:
                start = starter(start_slowly(self._kernel, grid, args, config, constants))
                signature.keep(key, start)
                return ReadyKernel(start, signature.tail, driver, device)
        given = list(args)
        for place, address in zip(signature.tensors, addresses, strict=True):
            given[place] = address
        given += signature.tail
        x, y, z = (*grid, 1, 1)[:3]
        start(x, y, z, driver.get_current_stream(device), given)
        return ReadyKernel(start, signature.tail, driver, device)


class Repeated:
    """A launch with everything fixed except the addresses of its tensors: after the first time it starts at once."""

    def __init__(
        self,
        grid: Sequence[int],
        tensors: Sequence[torch.Tensor | None],
        numbers: tuple[Any, ...],
        start: Callable[[Sequence[torch.Tensor | None]], ReadyKernel | None],
    ) -> None:
        """Takes a kernel whose first arguments are ``tensors`` and whose others are ``numbers``.

        ``start`` launches it in the ordinary way, and returns what was launched if that may be launched again.
        """
        self._x, self._y, self._z = (*grid, 1, 1)[:3]
        self._numbers, self._start = numbers, start
        there = [place for place, tensor in enumerate(tensors) if tensor is not None]
        self._take_tensors = _take(there)
        places = iter(range(len(there)))
        self._places = [len(there) if tensor is None else next(places) for tensor in tensors]
        """The positions of the kernel's first arguments among the addresses and a final None."""
        self._found: ReadyKernel | None = None
        self._behind: tuple[Any, ...] = ()
        self._order: Callable[[Sequence[Any]], tuple[Any, ...]] = tuple

    def start(self, *tensors: torch.Tensor | None) -> None:
        """Launches the kernel with ``tensors``: the original ones or others of the same layout, None at the same
        positions."""
        found, addresses = self._found, list(map(_data_ptr, self._take_tensors(tensors)))
        aligned = not reduce(or_, addresses, 0) & 15
        if found is not None and aligned and found.driver.get_current_device() == found.device:
            given = self._order((*addresses, *self._behind))
            found.start(self._x, self._y, self._z, found.driver.get_current_stream(found.device), given)
            return
        found = self._start(tensors)
        if found is not None and aligned:
            self._found, self._behind = found, (None, *self._numbers, *found.tail)
            last = len(addresses) + len(self._behind)
            self._order = _take([*self._places, *range(len(addresses) + 1, last)])


def start_slowly(
    kernel: Any, grid: Sequence[int], args: Sequence[Any], config: Config, constants: Mapping[str, Any]
) -> Any:
    """Launches through Triton; returns the compiled kernel."""
    _lend_scratch()
    return kernel[tuple(grid)](*args, **{**config.sizes, **constants}, **config.options)


class _Signature:
    """The types of the arguments, in order, and the values of the constants."""

    __slots__ = ("_aligned", "_compiled", "_fixed", "_free", "_ints", "starts", "tail", "take_tensors", "tensors")

    def __init__(self, kernel: Any, args: Sequence[Any], tail: list[Any]) -> None:
        params = kernel.params[: len(args)]
        kinds = [_kind(value, param) for value, param in zip(args, params, strict=True)]

        def places(*wanted: str) -> list[int]:
            return [place for place, kind in enumerate(kinds) if kind in wanted]

        self.tensors = places("aligned tensor", "tensor")
        self.take_tensors = _take(self.tensors)
        self._aligned = [kinds[place] == "aligned tensor" for place in self.tensors]
        self._ints = _take(places("value"))
        self._free = _take(places("free"))
        self._fixed = _take(places("constant"))
        self.tail = tail
        self.starts: dict[tuple[Any, ...], Start] = {}
        """Launch functions by device and key."""
        self._compiled: dict[tuple[Any, ...], Start] = {}
        """Launch functions by keys that hold the specialisation class of each integer in place of its value."""

    @classmethod
    def of(cls, kernel: Any, args: Sequence[Any], config: Config, constants: Mapping[str, Any]) -> "_Signature | None":
        """Returns the signature, or None if Triton has to launch such calls."""
        if not direct() or getattr(kernel, "pre_run_hooks", True):
            return None
        given = {**config.sizes, **constants}
        rest = kernel.params[len(args) :]
        if any(not param.is_constexpr or (param.name not in given and not param.has_default) for param in rest):
            return None
        if any(_kind(value, param) is None for value, param in zip(args, kernel.params, strict=False)):
            return None
        return cls(kernel, args, [given.get(param.name, param.default) for param in rest])

    def key(self, args: Sequence[Any], addresses: list[int]) -> tuple[Any, ...]:
        """Returns what Triton specialises of ``args``, whose tensors lie at ``addresses``; integers stand by value."""
        dtypes = tuple(map(_dtype, self.take_tensors(args)))
        crooked: tuple[bool, ...] = ()
        if reduce(or_, addresses, 0) & 15:
            pairs = zip(addresses, self._aligned, strict=True)
            crooked = tuple([matters and address & 15 != 0 for address, matters in pairs])
        wide: tuple[str, ...] = ()
        free = self._free(args)
        if free and not (min(free) >= _LEAST_INT32 and max(free) <= _MOST_INT32):
            wide = tuple(map(_width, free))
        fixed = self._fixed(args)
        return self._ints(args), dtypes, crooked, wide, fixed, tuple(map(type, fixed))

    def known(self, key: tuple[Any, ...]) -> Start | None:
        """Returns the kernel kept under an equivalent key with other integers, and keeps it under this key too."""
        start = self._compiled.get(_classed(key))
        if start is not None:
            self.keep(key, start)
        return start

    def keep(self, key: tuple[Any, ...], start: Start) -> None:
        if len(self.starts) >= MOST_KEYS:
            self.starts.clear()
        self.starts[key] = self._compiled[_classed(key)] = start


def _classed(key: tuple[Any, ...]) -> tuple[Any, ...]:
    device, ints, *rest = key
    return device, tuple(["1" if number == 1 else (number & 15 == 0, _width(number)) for number in ints]), *rest


def _kind(value: Any, param: Any) -> str | None:
    """Returns how Triton specialises ``value``; None for a kind of argument that this module does not know."""
    if param.is_constexpr:
        return "constant"
    if isinstance(value, torch.Tensor):
        loose = param.do_not_specialize or param.do_not_specialize_on_alignment
        return "tensor" if loose else "aligned tensor"
    if type(value) is int:
        return "free" if param.do_not_specialize else "value"
    return "type" if value is None or type(value) in (float, bool) else None


def _width(number: int) -> str:
    if _LEAST_INT32 <= number <= _MOST_INT32:
        return "i32"
    return "i64" if number <= _MOST_INT64 else "u64"


def _take(places: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Returns a function that picks the items at these positions of a sequence."""
    if not places:
        return lambda _: ()
    if len(places) == 1:
        place = places[0]
        return lambda values: (values[place],)
    return itemgetter(*places)


@cache
def direct() -> bool:
    """Whether the installed Triton version is one whose kernels can be launched directly."""
    import triton  # late: heavy

    version = ".".join(triton.__version__.split(".")[:2])
    if version not in KNOWN_VERSIONS:
        logger.warning(
            "Triton %s is not a version whose kernels can be started directly: each launch takes some 20 µs longer",
            triton.__version__,
        )
    return version in KNOWN_VERSIONS


@cache
def _drivers() -> Any:
    from triton.runtime import driver  # late: heavy

    return driver


def _lend_scratch() -> None:
    """Gives Triton the memory that a kernel's programs write their descriptors of tensors to. Triton keeps the function
    by context, so each such launch sets it."""
    import triton  # late: heavy

    triton.set_allocator(_allocate)


def _allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Returns memory of the current stream. It is free once the launch is queued: later kernels of the stream, or of
    the graph that is captured, may have it."""
    return torch.empty(size, dtype=torch.uint8, device=_drivers().active.get_active_torch_device())


def starter(compiled: Any) -> Start:
    """Returns the launch function of a kernel that Triton has compiled and loaded.

    From 3.8 on Triton unloads a kernel that nothing refers to; its own cache refers to ``compiled`` as long as the
    ``triton.jit`` function lives, which is as long as the :class:`Launcher`.
    """
    from triton.backends.nvidia.driver import CudaLauncher  # late: heavy

    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    extras = ("global_scratch_size", "profile_scratch_size", "gsan_enabled")  # the last from 3.8 on
    bare = type(run) is CudaLauncher and not any(getattr(run, name, 0) for name in extras)
    if not bare:

        def start(x: int, y: int, z: int, stream: int, args: Sequence[Any]) -> None:
            _lend_scratch()
            run(x, y, z, stream, function, packed, None, None, None, *args)

        return start
    launch, flags = run.launch, (run.launch_cooperative_grid, run.launch_pdl)
    if hasattr(run, "arg_annotations"):  # from 3.7
        behind = packed, None, None, None, None, None, run.arg_annotations, run.kernel_signature

        def start_listed(x: int, y: int, z: int, stream: int, args: Sequence[Any]) -> None:
            launch(x, y, z, stream, function, *flags, *behind, args)

        return start_listed
    before = None, None, packed, None, None, None

    def start_flat(x: int, y: int, z: int, stream: int, args: Sequence[Any]) -> None:
        launch(x, y, z, stream, function, *flags, *before, *args)

    return start_flat
