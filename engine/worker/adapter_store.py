"""Adapters in a worker's memory: read beside the steps, by a thread of their own, and put into slots of rows."""

import logging
import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Final

import torch

from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef

from ..layers.adapters import Adapter, AdapterPlaces
from ..loading.adapter_files import AdapterMissing
from ..loading.errors import CheckpointError
from ..processes.exception_groups import one_line
from .adapter_reader import read_adapter

logger = logging.getLogger(__name__)

_MOST_TOLD: Final = 500
"""Characters of what is wrong with an adapter: names and numbers in it are as long as its files have them."""


class AdapterStore:
    """Those that the engine has asked for; it decides which, and what slots they are in."""

    def __init__(self, places: AdapterPlaces, max_rank: int, device: torch.device) -> None:
        """``places`` may be added to while no adapter is wanted yet."""
        self._places = places
        self._max_rank = max_rank
        self.device = device
        self._adapters: dict[int, Adapter] = {}
        self._slots: dict[int, int] = {}
        """The number of the adapter in each slot."""
        self._wanted: queue.SimpleQueue[AdapterRef] = queue.SimpleQueue()
        self._read: queue.SimpleQueue[tuple[AdapterRef, Adapter | CheckpointError]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.reading = 0
        """How many are being read, or wait for that."""

    @property
    def tables(self) -> int:
        """How many slots each table on a device has; 0 without any."""
        return self._places.slots

    def has_loose(self, slots: Iterable[int]) -> bool:
        """Whether an adapter in one of these slots changes a product that has no table."""
        return self._places.has_loose(slots)

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
                found.append(AdapterLoaded(adapter.number, _told(result), isinstance(result, AdapterMissing)))
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
        while number >= 0 and number not in self._adapters and self.reading:
            self.take(None)  # where workers split a model the first has said that it is there, and this one reads yet
        self._places.put(slot, None if number < 0 else self._adapters[number])
        if number < 0:
            self._slots.pop(slot, None)
        else:
            self._slots[slot] = number

    def _read_all(self) -> None:
        while True:
            adapter = self._wanted.get()
            try:
                self._read.put((adapter, read_adapter(adapter, self._places, self._max_rank, self.device)))
            except CheckpointError as error:
                self._read.put((adapter, error))
            except Exception as error:
                logger.exception("the adapter %r could not be read", adapter.name)
                self._read.put((adapter, CheckpointError(f"it could not be read: {type(error).__name__}")))


def _told(error: CheckpointError) -> str:
    line = one_line(error)
    return line if len(line) <= _MOST_TOLD else f"{line[:_MOST_TOLD]}…"
