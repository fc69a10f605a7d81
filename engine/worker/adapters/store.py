"""The adapters in a worker's memory: a thread reads them beside the steps; then they are put into slots."""

import logging
import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Final

import torch

from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef

from ...layers.linear.adapters import Adapter, AdapterPlaces
from ...loading.adapter_files import AdapterMissing
from ...loading.errors import CheckpointError
from ...processes.exception_groups import one_line
from .reader import read_adapter

logger = logging.getLogger(__name__)

_MOST_TOLD: Final = 500
"""Longest error message, since names and numbers in it come from the adapter's files."""


class AdapterStore:
    """Holds the adapters that the engine orders; the engine also assigns their slots."""

    def __init__(self, places: AdapterPlaces, max_rank: int, device: torch.device) -> None:
        """``places`` may grow until the first adapter is ordered."""
        self._places = places
        self._max_rank = max_rank
        self.device = device
        self._adapters: dict[int, Adapter] = {}
        self._slots: dict[int, int] = {}
        """Adapter number by slot."""
        self._wanted: queue.SimpleQueue[AdapterRef] = queue.SimpleQueue()
        self._read: queue.SimpleQueue[tuple[AdapterRef, Adapter | CheckpointError]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.reading = 0
        """Adapters ordered and not taken yet."""

    @property
    def tables(self) -> int:
        """Slots of each table on a device; 0 if there are none."""
        return self._places.slots

    def has_loose(self, slots: Iterable[int]) -> bool:
        """Whether an adapter in one of these slots changes a product without a table."""
        return self._places.has_loose(slots)

    @property
    def numbers(self) -> list[int]:
        """Numbers of the loaded adapters."""
        return sorted(self._adapters)

    def load(self, adapter: AdapterRef) -> None:
        """Begin reading an adapter; :meth:`take` returns it when it is loaded."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_all, name="read-adapters", daemon=True)
            self._thread.start()
        self.reading += 1
        self._wanted.put(adapter)

    def take(self, seconds: float | None = 0.0) -> list[AdapterLoaded]:
        """The adapters read since the last call, and errors. Waits ``seconds`` for the first; None: without limit."""
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
        """Drop an adapter that no row uses."""
        self._adapters.pop(number, None)
        for slot in [slot for slot, held in self._slots.items() if held == number]:
            self._put(slot, -1)

    def put(self, slots: Sequence[tuple[int, int]]) -> None:
        """Assign adapters, given as (slot, number). Raises KeyError if one is not loaded."""
        for slot, number in slots:
            self._put(slot, number)

    def _put(self, slot: int, number: int) -> None:
        while number >= 0 and number not in self._adapters and self.reading:
            self.take(None)  # rank 0 reported it as loaded, while this rank still reads it
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
