"""Bookkeeping of adapters: which are in the worker's memory, and which have slots for rows."""

from collections import Counter, OrderedDict
from collections.abc import Iterator

from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterRef, DropAdapter, LoadAdapter


class AdapterCache:
    """Allocates ``max_loaded`` places in the worker's memory, and ``max_slots`` slots for adapters of running rows.

    An adapter that a living request names is loaded and stays. If all places are taken by such adapters, later requests
    wait in order of arrival, even if their adapter is loaded; otherwise that one would never be evicted. An adapter
    without requests stays until its place is needed, least recently used first. Slots are kept in the same way after
    their rows.
    """

    __slots__ = (
        "_behind",
        "_holders",
        "_loaded",
        "_orders",
        "_placed",
        "_ready",
        "_rows",
        "_slots",
        "_wanted",
        "max_loaded",
        "max_slots",
    )

    def __init__(self, max_slots: int, max_loaded: int) -> None:
        self.max_slots = max_slots
        self.max_loaded = max(max_slots, max_loaded)
        self._holders: dict[int, set[int]] = {}
        """Requests that name an adapter, by adapter."""
        self._wanted: OrderedDict[int, AdapterRef] = OrderedDict()
        """Named adapters without a place in memory."""
        self._behind: dict[int, AdapterRef] = {}
        """Adapter by request, of requests that came while others waited for a place."""
        self._ready: list[tuple[int, int]] = []
        """(request, adapter) of those whose turn has come and whose adapter is loaded."""
        self._orders: list[LoadAdapter | DropAdapter] = []
        self._loaded: OrderedDict[int, tuple[AdapterRef, bool]] = OrderedDict()
        """Adapters with a place, and whether they are loaded; least recently used first."""
        self._slots: OrderedDict[int, int] = OrderedDict()
        """Slot by adapter; least recently used first."""
        self._rows: Counter[int] = Counter()
        """Running rows by adapter."""
        self._placed: list[tuple[int, int]] = []

    @property
    def running(self) -> list[int]:
        """Adapters of running rows."""
        return list(self._rows)

    @property
    def waiting(self) -> list[int]:
        """Adapters that requests name and no row uses."""
        named = [*self._holders, *(adapter.number for adapter in self._behind.values())]
        return [number for number in dict.fromkeys(named) if number not in self._rows]

    # ---- memory

    def hold(self, adapter: AdapterRef, holder: int) -> bool:
        """Register a request's adapter until :meth:`leave`. False if the request must wait until it is loaded."""
        if self._wanted:
            self._behind[holder] = adapter
            return False
        there = self._join(adapter, holder)
        self._fill()
        return there

    def _join(self, adapter: AdapterRef, holder: int) -> bool:
        """Whether the adapter is loaded; without a place it is queued for one."""
        number = adapter.number
        self._holders.setdefault(number, set()).add(holder)
        if number not in self._loaded:
            self._wanted[number] = adapter
            return False
        self._loaded.move_to_end(number)
        return self._loaded[number][1]

    def leave(self, number: int, holder: int) -> None:
        """Unregister a request that has ended."""
        if self._behind.pop(holder, None) is not None:
            return
        holders = self._holders[number]
        holders.remove(holder)
        if not holders:
            del self._holders[number]
            self._wanted.pop(number, None)
            self._fill()

    def take_loaded(self, message: AdapterLoaded) -> set[int]:
        """Record that the worker has read an adapter or failed to; returns the requests that hold it."""
        number = message.number
        if number not in self._loaded:
            return set()
        if message.error:
            del self._loaded[number]
        else:
            self._loaded[number] = self._loaded[number][0], True
        self._fill()
        return set(self._holders.get(number, ()))

    def take_ready(self) -> list[tuple[int, int]]:
        """(request, adapter) of those that waited behind others, and whose adapter was loaded all along."""
        ready, self._ready = self._ready, []
        return [(holder, number) for holder, number in ready if holder in self._holders.get(number, ())]

    def take_orders(self) -> list[LoadAdapter | DropAdapter]:
        """Load and drop orders that the worker must get before the next step."""
        orders, self._orders = self._orders, []
        return orders

    def _fill(self) -> None:
        """Give places to waiting adapters while there are any, in order of arrival."""
        while self._wanted or self._behind:
            if not self._wanted:
                holder = next(iter(self._behind))
                adapter = self._behind.pop(holder)
                if self._join(adapter, holder):
                    self._ready.append((holder, adapter.number))
                continue
            if len(self._loaded) >= self.max_loaded:
                unused = next(self._unused(), None)
                if unused is None:
                    return
                del self._loaded[unused]
                self._slots.pop(unused, None)
                self._orders.append(DropAdapter(unused))
            number, adapter = self._wanted.popitem(last=False)
            self._loaded[number] = adapter, False
            self._orders.append(LoadAdapter(adapter))

    def _unused(self) -> Iterator[int]:
        return (number for number, (_, there) in self._loaded.items() if there and number not in self._holders)

    # ---- slots

    def has_room(self, number: int) -> bool:
        """Whether a slot is free for a row with the adapter."""
        return number in self._slots or len(self._rows) < self.max_slots

    def enter(self, number: int) -> None:
        """Register a row with the adapter. There must be room: see :meth:`has_room`."""
        if number not in self._slots:
            slot = next((each for each in range(self.max_slots) if each not in self._slots.values()), -1)
            if slot < 0:
                slot = self._slots.pop(next(each for each in self._slots if each not in self._rows))
            self._slots[number] = slot
            self._placed.append((slot, number))
        self._slots.move_to_end(number)
        self._rows[number] += 1

    def slot_of(self, number: int) -> int:
        """The slot of an adapter that rows use."""
        return self._slots[number]

    def exit(self, number: int) -> None:
        """Unregister a row with the adapter."""
        self._rows[number] -= 1
        if not self._rows[number]:
            del self._rows[number]

    def take_placed(self) -> list[tuple[int, int]]:
        """(slot, adapter) of slots that changed since the last plan."""
        placed, self._placed = self._placed, []
        return [(slot, number) for slot, number in placed if self._slots.get(number) == slot]

    def reset(self) -> list[int]:
        """Queue all named adapters again, because the worker is gone. Returns their requests."""
        self._orders.clear()
        self._placed.clear()
        self._rows.clear()
        self._slots.clear()
        again = {number: adapter for number, (adapter, _) in self._loaded.items() if number in self._holders}
        again |= self._wanted
        self._loaded.clear()
        self._ready.clear()
        for holder, adapter in self._behind.items():
            self._holders.setdefault(adapter.number, set()).add(holder)
            again.setdefault(adapter.number, adapter)
        self._behind.clear()
        self._wanted = OrderedDict(again)
        self._fill()
        return sorted(holder for holders in self._holders.values() for holder in holders)

    def check_integrity(self) -> None:
        assert len(self._loaded) <= self.max_loaded, "more adapters are loaded than there are places"
        assert sorted(set(self._slots.values())) == sorted(self._slots.values()), "two adapters have one slot"
        assert all(slot < self.max_slots for slot in self._slots.values()), "a slot is out of range"
        assert self._rows.keys() <= self._slots.keys() <= self._loaded.keys(), "a row's adapter is not there"
        assert self._rows.keys() <= self._holders.keys(), "a row has an adapter that no request names"
        assert self._holders.keys() <= self._loaded.keys() | self._wanted.keys(), "a named adapter is forgotten"
