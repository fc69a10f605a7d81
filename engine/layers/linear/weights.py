"""Maps the tensors of a checkpoint to the tensors of a model.

Layers allocate their final tensors and register, by stored name, the views that each stored tensor fills: three stored
projections fill three slices of one fused matrix, without a second copy. Tensors that must be placed together (packed
weights, their scales and zero points) are gathered, one projection at a time.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
import torch

from ...model_config.tensor_parallel.cuts import Cut
from ...model_config.tensor_parallel.rank_part import RankPart
from ...quantization.stored import StoredError

_PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

_MAY_BE_ZERO = ("bias", "weight_zero_point", "input_zero_point")
"""Endings that exporters write for every projection; tensors of zeros can be ignored."""

Place = Callable[[dict[str, torch.Tensor]], None]
"""Takes the tensors of one projection by ending; may raise :class:`WeightError` and ``StoredError``."""


class WeightError(Exception):
    """A checkpoint does not fit the model."""


class Target(msgspec.Struct, frozen=True):
    """The destination of one stored tensor."""

    tensor: torch.Tensor
    shape: tuple[int, ...]
    """Shape of the stored tensor."""
    read: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Applied before the copy."""

    def fill(self, name: str, stored: torch.Tensor) -> None:
        """Copy a stored tensor, converting the dtype of plain values. Raises :class:`WeightError`."""
        check_shape(name, stored, self.shape)
        if stored.dtype != self.tensor.dtype:
            check_plain(name, stored)
        self.tensor.copy_(stored if self.read is None else self.read(stored))


Arrange = Callable[[torch.Tensor], torch.Tensor]
"""Converts a plain stored tensor to the form of its destination."""
Fill = Callable[[str, torch.Tensor], None]
"""Takes the name and value of a stored tensor; may raise :class:`WeightError`."""


class _Alternative(msgspec.Struct):
    """Tensors that may be stored in place of others."""

    missing: set[str]
    others: frozenset[str]


class _Gathering:
    """Tensors of one projection that are placed together."""

    def __init__(self, part: str, needed: Iterable[str], place: Place) -> None:
        self._part = part
        self._needed = set(needed)
        self._found: dict[str, torch.Tensor] = {}
        self._place = place

    def give(self, ending: str, tensor: torch.Tensor) -> None:
        """Add a tensor; places all, and frees them, when this is the last one."""
        self._found[ending] = tensor
        if self._found.keys() >= self._needed:
            found, self._found = self._found, {}
            try:
                self._place(found)
            except StoredError as error:
                raise WeightError(f"{self._part}: {error}") from error


class WeightMap:
    """Destinations by stored name."""

    def __init__(self, part: RankPart | None = None) -> None:
        """``part``: this worker's part of the stored tensors, if several split the model."""
        self._part = part
        self._targets: dict[str, Target] = {}
        self._aliases: dict[str, str] = {}
        self._shared: dict[str, str] = {}
        self._arranged: dict[str, tuple[tuple[int, ...], Arrange]] = {}
        self._shortened: dict[str, int] = {}
        self._alternatives: dict[str, tuple[Fill, _Alternative]] = {}
        self._gathered: dict[str, tuple[_Gathering, str]] = {}
        self._passed_over: set[str] = set()
        self._offered: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
        self._parts: set[str] = set()
        self._gathered_bytes = 0
        self._derived: list[tuple[torch.Tensor, Callable[[], torch.Tensor]]] = []
        self._raw: set[str] = set()
        self.notes: Counter[str] = Counter()
        """Notes for the operator, with the number of projections."""

    def add(
        self,
        name: str,
        target: torch.Tensor,
        *,
        shape: tuple[int, ...] | None = None,
        read: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """Register ``target`` for a stored tensor, which is converted to its dtype; a tensor of another ``shape`` by
        ``read``."""
        self._targets[name] = Target(target, shape or tuple(target.shape), read)
        self._parts.add(name.rpartition(".")[0])

    def alias(self, name: str, usual: str) -> None:
        """Treat tensors with this name as stored under the ``usual`` one."""
        self._aliases[name] = usual

    def arrange(self, name: str, shape: tuple[int, ...], arrange: Arrange) -> None:
        """Apply ``arrange`` to the tensor with this name and ``shape`` before it is placed."""
        self._arranged[name] = shape, arrange

    def shorten(self, name: str, size: int) -> None:
        """Take the first ``size`` numbers of the row with this name: files may have zeros behind them (Kimi K3)."""
        self._shortened[name] = size

    def share(self, part: str, other: str) -> None:
        """Use the tensors stored for ``part`` for ``other`` too."""
        self._shared[part] = other

    def _all_stored(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors under all of their names."""
        for name, tensor in tensors:
            yield name, tensor
            part, _, ending = name.rpartition(".")
            if part in self._shared:
                yield f"{self._shared[part]}.{ending}", tensor

    def add_instead(self, others: Iterable[str], fills: Mapping[str, Fill]) -> None:
        """Allow these tensors, all of them, in place of ``others`` with the same destinations."""
        alternative = _Alternative(set(fills), frozenset(others))
        for name, fill in fills.items():
            self._alternatives[name] = fill, alternative

    def offer(self, name: str, target: torch.Tensor) -> None:
        """Register a target that may be filled by a stored tensor or by a single value, and stays unchanged
        otherwise."""
        self._offered[name].append(target)

    def pass_over(self, *names: str) -> None:
        """Ignore these tensors if they are stored."""
        self._passed_over.update(names)

    def gather(
        self, part: str, needed: Iterable[str], place: Place, *, nbytes: int, ignored: Iterable[str] = ()
    ) -> None:
        """Call ``place`` with the tensors ``part.ending``, as stored, once all ``needed`` ones are there.

        ``nbytes``: of their destination. ``ignored``: endings that may be stored too.
        """
        gathering = _Gathering(part, needed, place)
        for ending in needed:
            self._gathered[f"{part}.{ending}"] = gathering, ending
        self._parts.add(part)
        self.pass_over(*(f"{part}.{ending}" for ending in ignored))
        self._gathered_bytes += nbytes

    def derive(self, target: torch.Tensor, make: Callable[[], torch.Tensor]) -> None:
        """Register a target that is computed by ``make`` once the other tensors are loaded."""
        self._derived.append((target, make))

    def ask_raw(self, name: str) -> None:
        """Request the stored blocks of this tensor (GGUF)."""
        self._raw.add(name)

    @property
    def raw(self) -> frozenset[str]:
        return frozenset(self._raw)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all stored tensors in model order, for a model of plain weights."""
        stored = {name: shape for name, (shape, _) in self._arranged.items()}
        return {name: stored.get(name, target.shape) for name, target in self._targets.items()}

    @property
    def total_bytes(self) -> int:
        """Bytes of all destinations."""
        derived = sum(target.nbytes for target, _ in self._derived)
        return sum(target.tensor.nbytes for target in self._targets.values()) + self._gathered_bytes + derived

    def wants(self, name: str) -> bool:
        """Whether a stored tensor with this name has a destination that must be filled."""
        return name in self._targets or name in self._gathered

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]], *, ignore: tuple[str, ...] = ()) -> None:
        """Copy every stored tensor to its destination, converting the dtype of plain ones.

        Names that end with an entry of ``ignore`` are ignored. So are tensors without elements, and biases and zero
        points of zeros, that have no destination. Raises :class:`WeightError` for a name without a destination, a wrong
        shape, or a destination left empty.
        """
        missing = self._targets.keys() | self._gathered.keys()
        for stored, tensor in self._all_stored(tensors):
            name = self._aliases.get(stored, stored)
            if self._part is not None and self._part.leaves_out(name):
                continue
            if (size := self._shortened.get(name)) is not None:
                tensor = _without_zeros(name, tensor, size)
            if self._part is not None and (cut := self._part.cut_of(name, raw=name in self._raw)) is not None:
                tensor = cut_tensor(name, tensor, cut)
            if (arranged := self._arranged.get(name)) is not None:
                shape, arrange = arranged
                check_shape(name, tensor, shape)
                tensor = arrange(tensor)
            if (target := self._targets.get(name)) is not None:
                target.fill(name, tensor)
            elif (found := self._alternatives.get(name)) is not None:
                fill, alternative = found
                fill(name, tensor)
                alternative.missing.discard(name)
                if not alternative.missing:
                    missing -= alternative.others
            elif (waiting := self._gathered.get(name)) is not None:
                gathering, ending = waiting
                gathering.give(ending, tensor)
            elif (offered := self._offered.get(name)) is not None:
                for offer in offered:
                    _fill_all(name, offer, tensor)
            elif name in self._passed_over or name.endswith(ignore) or self._carries_nothing(name, tensor):
                continue
            else:
                raise WeightError(f"the checkpoint holds {name}, which this architecture has no place for")
            missing.discard(name)
        if missing:
            names = sorted(missing)
            lacking = names[0] + (f" and {len(names) - 1} more" if names[1:] else "")
            raise WeightError(f"the checkpoint lacks {lacking}; fetch it again, or check its configuration")
        for derived, make in self._derived:
            derived.copy_(make())

    def _carries_nothing(self, name: str, tensor: torch.Tensor) -> bool:
        part, _, ending = name.rpartition(".")
        if not tensor.numel():
            return True
        return ending in _MAY_BE_ZERO and part in self._parts and not tensor.float().any()

    def note_lines(self) -> Iterator[str]:
        """Notes for the operator, most frequent first."""
        for line, count in self.notes.most_common():
            yield f"{line} ({count} projection{'s' if count > 1 else ''})"


def check_shape(name: str, tensor: torch.Tensor, expected: tuple[int, ...]) -> None:
    """Raise :class:`WeightError` unless the stored tensor has the expected shape."""
    if tuple(tensor.shape) != expected:
        shape = tuple(tensor.shape)
        raise WeightError(f"{name} has shape {shape} in the checkpoint, expected {expected} by its configuration")


def _without_zeros(name: str, row: torch.Tensor, size: int) -> torch.Tensor:
    """The first ``size`` numbers of a stored row with zeros behind them. Raise :class:`WeightError` for others."""
    if row.dim() != 1 or len(row) <= size:
        return row
    if row[size:].any():
        raise WeightError(f"{name} has {len(row)} numbers in the checkpoint, expected {size} and zeros behind them")
    return row[:size]


def _fill_all(name: str, target: torch.Tensor, tensor: torch.Tensor) -> None:
    if tensor.numel() not in (1, target.numel()):
        raise WeightError(
            f"{name} has shape {tuple(tensor.shape)} in the checkpoint, expected one value or {target.numel()}"
        )
    if target.dim() > 1:
        check_shape(name, tensor, tuple(target.shape))
        target.copy_(tensor)
    else:
        target.copy_(tensor.float().reshape(-1))


def check_plain(name: str, tensor: torch.Tensor) -> None:
    """Raise :class:`WeightError` for values that need a scale."""
    if tensor.dtype not in _PLAIN:
        raise WeightError(
            f"{name} is stored as {str(tensor.dtype).removeprefix('torch.')}, "
            "although the checkpoint's description says that it is not quantised"
        )


def cut_tensor(name: str, tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    """The part of a stored tensor that ``cut`` selects; the rest is neither copied nor kept.

    Raises :class:`WeightError` if the tensor does not have the size that the cut expects.
    """
    if cut.scale and tensor.numel() == 1:
        return tensor
    stored = tensor[:, 0, :, 0] if cut.scale and tensor.dim() == 4 else tensor
    if cut.transposed and stored.dim() == 3 and stored.shape[cut.dim] != cut.size:
        stored = stored.transpose(-1, -2)
    if not -stored.dim() <= cut.dim < stored.dim() or stored.shape[cut.dim] != cut.size:
        raise WeightError(
            f"{name} has shape {tuple(tensor.shape)} in the checkpoint, expected {cut.size} in dimension {cut.dim}"
        )
    if cut.zero:
        return torch.zeros_like(stored)
    parts = [stored.narrow(cut.dim, first, count) for first, count in cut.ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=cut.dim)
