"""Adapters in a worker's memory: read beside the steps, by a thread of their own, and put into slots of rows."""

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Final

import torch

from stentor.kernels.low_rank import LowRank, LowRankSum
from stentor.kernels.native.memory import Room
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef

from ..layers.adapters import AdaptedLinear, Adapter, AdapterPlace, AdapterPlaces
from ..loading.adapter_config import AdapterConfig
from ..loading.adapter_files import WEIGHTS, AdapterFiles, AdapterMissing, open_adapter
from ..loading.errors import CheckpointError
from ..loading.safetensors_index import StoredTensor
from ..processes.exception_groups import one_line

logger = logging.getLogger(__name__)

_BASE: Final = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_FLOATS: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_TEXT_PARTS: Final = ("", "model.", "language_model.", "model.language_model.", "language_model.model.", "model.model.")
"""Before the layers of a language model, in the names of one class or another."""


class AdapterStore:
    """Those that the engine has asked for; it decides which, and what slots they are in."""

    def __init__(self, places: AdapterPlaces, max_rank: int, device: torch.device) -> None:
        """``places`` may be added to while no adapter is wanted yet."""
        self._places = places
        self._max_rank = max_rank
        self._device = device
        self._adapters: dict[int, Adapter] = {}
        self._slots: dict[int, int] = {}
        """The number of the adapter in each slot."""
        self._wanted: queue.SimpleQueue[AdapterRef] = queue.SimpleQueue()
        self._read: queue.SimpleQueue[tuple[AdapterRef, Adapter | CheckpointError]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.reading = 0
        """How many are being read, or wait for that."""

    @property
    def numbers(self) -> list[int]:
        """Those that are there."""
        return sorted(self._adapters)

    def load(self, adapter: AdapterRef) -> None:
        """Begins to read it; :meth:`take` says when it is there."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_all, name="read-adapters", daemon=True)
            self._thread.start()
        self.reading += 1
        self._wanted.put(adapter)

    def take(self, seconds: float | None = 0.0) -> list[AdapterLoaded]:
        """What has been read since, or could not be; waits so long for the first, None for as long as it takes."""
        found: list[AdapterLoaded] = []
        while self.reading:
            try:
                adapter, result = self._read.get(timeout=seconds) if seconds != 0.0 else self._read.get_nowait()
            except queue.Empty:
                break
            seconds = 0.0
            self.reading -= 1
            if isinstance(result, CheckpointError):
                found.append(AdapterLoaded(adapter.number, one_line(result), isinstance(result, AdapterMissing)))
            else:
                self._adapters[adapter.number] = result
                found.append(AdapterLoaded(adapter.number))
        return found

    def drop(self, number: int) -> None:
        """No row has it any more."""
        self._adapters.pop(number, None)
        for slot in [slot for slot, held in self._slots.items() if held == number]:
            self._put(slot, -1)

    def put(self, slots: Sequence[tuple[int, int]]) -> None:
        """Of each, a slot and the number of the adapter that its rows have from now on. Raises KeyError for one that is
        not there."""
        for slot, number in slots:
            self._put(slot, number)

    def _put(self, slot: int, number: int) -> None:
        self._places.put(slot, None if number < 0 else self._adapters[number])
        if number < 0:
            self._slots.pop(slot, None)
        else:
            self._slots[slot] = number

    def _read_all(self) -> None:
        while True:
            adapter = self._wanted.get()
            try:
                self._read.put((adapter, read_adapter(adapter, self._places, self._max_rank, self._device)))
            except CheckpointError as error:
                self._read.put((adapter, error))
            except Exception as error:
                logger.exception("the adapter %r could not be read", adapter.name)
                self._read.put((adapter, CheckpointError(f"it could not be read: {type(error).__name__}")))


def read_adapter(adapter: AdapterRef, places: AdapterPlaces, max_rank: int, device: torch.device) -> Adapter:
    """All of it, as its products take it. Nothing is read of files that do not fit the model. Raises
    :class:`..loading.errors.CheckpointError`."""
    with open_adapter(adapter.root, adapter.path) as files:
        if adapter.identity and files.identity != adapter.identity:
            raise CheckpointError(
                f"the files of the adapter {adapter.name!r} have changed since it was loaded: unload it and load it "
                "again"
            )
        config = files.read_config()
        pairs = _paired(files.tensors(), places)
        for name, pair in pairs.items():
            _check(*pair, config, places.by_name[name], max_rank)
        room = Room()
        found: dict[AdaptedLinear, LowRankSum] = {}
        for names in places.in_order(list(pairs)):  # no more than a product is there twice
            parts = []
            for name in names:
                module, down, up = pairs[name]
                matrices = _read(files, down).to(device), _read(files, up).to(device)
                parts.append(LowRank(*matrices, config.scale_of(module), places.by_name[name].column))
            linear = places.by_name[names[0]].linear
            found[linear] = linear.kept(parts, room.take)
        return found


def _paired(
    tensors: Sequence[StoredTensor], places: AdapterPlaces
) -> dict[str, tuple[str, StoredTensor, StoredTensor]]:
    """Of each projection that is added to, by its stored name: the module in the adapter, A and B."""
    by_module: dict[str, dict[str, StoredTensor]] = {}
    for tensor in tensors:
        name = tensor.name.replace(".default.weight", ".weight")
        ending = next((each for each in (_DOWN, _UP) if name.endswith(each)), None)
        if ending is None:
            raise CheckpointError(f"{WEIGHTS} holds {tensor.name[:200]!r}; expected lora_A and lora_B of linear layers")
        by_module.setdefault(name.removesuffix(ending).removeprefix(_BASE), {})[ending] = tensor
    if not by_module:
        raise CheckpointError(f"{WEIGHTS} holds no tensors")
    found: dict[str, tuple[str, StoredTensor, StoredTensor]] = {}
    for module, parts in by_module.items():
        if len(parts) != 2:
            lacks = "lora_B" if _DOWN in parts else "lora_A"
            raise CheckpointError(f"{WEIGHTS} lacks {lacks} of {module[:200]!r}")
        stored = _stored_name(module, places)
        if stored is None:
            raise CheckpointError(
                f"it changes {module[:200]!r}, which this model has not, or which is not adapted here; attention and "
                "plain feed-forward networks are"
            )
        found[stored] = module, parts[_DOWN], parts[_UP]
    return found


def _stored_name(module: str, places: AdapterPlaces) -> str | None:
    """What a checkpoint of the model calls a module, which its class may call otherwise before the layers."""
    if module in places.by_name:
        return module
    before, layers, rest = module.partition("layers.")
    if not layers or before not in _TEXT_PARTS:
        return None
    return next((name for part in _TEXT_PARTS if (name := f"{part}layers.{rest}") in places.by_name), None)


def _check(
    module: str, down: StoredTensor, up: StoredTensor, config: AdapterConfig, place: AdapterPlace, max_rank: int
) -> None:
    rank = config.rank_of(module)
    if rank > max_rank:
        raise CheckpointError(f"{module} has rank {rank}, and the server takes {max_rank}: raise --max-lora-rank")
    for tensor, shape in ((down, (rank, place.inputs)), (up, (place.outputs, rank))):
        size = shape[0] * shape[1] * (_FLOATS[tensor.dtype].itemsize if tensor.dtype in _FLOATS else 0)
        if tensor.shape != shape or tensor.nbytes != size:
            raise CheckpointError(
                f"{tensor.name} is {tensor.dtype} {list(tensor.shape)} in {tensor.nbytes} bytes; expected are floats "
                f"{list(shape)}"
            )


def _read(files: AdapterFiles, tensor: StoredTensor) -> torch.Tensor:
    """float32, a piece at a time: between two of them, steps go on."""
    made = torch.empty(tensor.shape, dtype=torch.float32)
    flat, at = made.view(-1), 0
    for piece in files.pieces(tensor):
        values = torch.frombuffer(bytearray(piece), dtype=_FLOATS[tensor.dtype])
        flat[at : at + len(values)] = values
        at += len(values)
    return made
