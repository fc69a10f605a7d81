"""What comes from outside for requests that cannot run without: grammars, transfers, media, adapters."""

import msgspec

from stentor.protocols.ipc.actors import Finished, TokensBatch
from stentor.protocols.ipc.adapters import AdapterLoaded, AdapterWarm, DropAdapter, LoadAdapter, WarmAdapter

from ..grammar.constraint import TokenConstraint
from ..request import Request
from ..sequence import SequenceState
from .kv_cache_manager import KVCacheManager
from .output import Output
from .recovery import WorkerRecovery


class Prerequisites:
    """A request that awaits one stands aside: it holds nothing, and nobody waits for it. Once it has come, the request
    takes its place by its importance."""

    def __init__(self, memory: KVCacheManager, output: Output, recovery: WorkerRecovery) -> None:
        self._memory = memory
        self._output = output
        self._recovery = recovery
        self.media_wanted: list[int] = []
        """Requests whose media are to be written, and whose client has not been told."""

    def constrain(self, rid: int, constraints: list[TokenConstraint | None]) -> TokensBatch | None:
        """The grammar is there that a request awaits: what each sequence follows, fed with what is resumed.

        Sequences of a resumed request that want nothing any more end; None where none does.
        """
        request = self._output.requests.get(rid)
        if request is None:
            return None
        for sequence, constraint in zip(request.sequences, constraints, strict=True):
            sequence.constraint = constraint
        ended = self.end_satisfied(request)
        self._memory.queue.has_come(request, "grammar")
        return ended

    def load(self, rid: int) -> None:
        """Something is being loaded for a request: its sequences without a row are LOADING until :meth:`loaded`.

        These stand aside: they hold nothing, and nobody waits for them. Rows go on. Whoever loads sees to it that
        :meth:`loaded` follows, and keeps what the blocks hold that it loads into until then; afterwards the request
        finds it as any prefix that is cached.
        """
        if (request := self._output.requests.get(rid)) is not None:
            self._memory.queue.stand_aside(request, "transfer")

    def loaded(self, rid: int, epoch: int, error: str | None = None) -> TokensBatch | None:
        """What :meth:`load` began in this epoch is over: the request takes its place by its importance.

        What could not be loaded is computed; ``error`` says that it cannot be, and ends the request. None where nothing
        ends, as for a request that has ended, or lost with a worker what was being loaded.
        """
        request = self._output.requests.get(rid)
        if epoch != self._recovery.epoch or request is None or "transfer" not in request.awaits:
            return None
        if error is not None:
            return self._recovery.noted(TokensBatch([], [], self._output.finish_all(request, "error", error)))
        self._memory.queue.has_come(request, "transfer")
        return None

    # ---- media

    def want_media(self, request: Request) -> None:
        """What it has brought has to be read and is not written yet."""
        self._memory.queue.stand_aside(request, "media")
        self.media_wanted.append(request.rid)

    def take_media_wanted(self) -> list[int]:
        """Requests whose media have to be encoded and are not written: each awaits :meth:`media_written`. Told once,
        and again where media that were known are so no more."""
        wanted, self.media_wanted = self.media_wanted, []
        return wanted

    def media_written(self, rid: int, error: str = "") -> TokensBatch | None:
        """All that a request has brought can be read, as :meth:`take_media_wanted` asked; or, as ``error`` says, it
        cannot, and the request ends. None where nothing ends."""
        request = self._output.requests.get(rid)
        if request is None:
            return None
        if error:
            return self._recovery.noted(TokensBatch([], [], self._output.finish_all(request, "error", error)))
        request.inputs = [msgspec.structs.replace(span, written=True) for span in request.inputs]
        self._memory.queue.has_come(request, "media")
        return None

    # ---- adapters

    def warm(self, message: WarmAdapter) -> AdapterWarm | None:
        """Load an adapter that no request names yet; the answer, if it is there already or none can be."""
        if not self._memory.adapters.max_slots:
            return AdapterWarm(message.ticket, "the model is served without adapters")
        holder = -1 - message.ticket
        if not self._memory.adapters.hold(message.adapter, holder):
            return None
        self._memory.adapters.leave(message.adapter.number, holder)
        return AdapterWarm(message.ticket)

    def adapter_loaded(self, message: AdapterLoaded) -> tuple[TokensBatch, list[AdapterWarm]]:
        """The worker has read an adapter, or cannot: requests that await it run or end."""
        finished: list[Finished] = []
        answers: list[AdapterWarm] = []
        adapters = self._memory.adapters
        for holder in sorted(adapters.take_loaded(message)):
            if holder < 0:
                adapters.leave(message.number, holder)
                answers.append(AdapterWarm(-1 - holder, message.error, message.missing))
                continue
            request = self._output.requests[holder]
            if message.error:
                finished += self._output.finish_all(request, "error", message.error, "adapter")
            else:
                self._memory.queue.has_come(request, "adapter")
        return self._recovery.noted(TokensBatch([], [], finished)), answers

    def take_adapter_orders(self) -> tuple[list[LoadAdapter | DropAdapter], list[AdapterWarm]]:
        """What the worker is to be told of adapters before the next plan, and who else is to be told of one."""
        adapters = self._memory.adapters
        answers: list[AdapterWarm] = []
        for holder, number in adapters.take_ready():
            if holder < 0:
                adapters.leave(number, holder)
                answers.append(AdapterWarm(-1 - holder))
            else:
                self._memory.queue.has_come(self._output.requests[holder], "adapter")
        return adapters.take_orders(), answers

    # ---- what has come already

    def end_satisfied(self, request: Request) -> TokensBatch | None:
        """End the sequences of a resumed request that have all they get."""
        finished = [
            self._output.finish(sequence, *end)
            for sequence in request.sequences
            if sequence.state is not SequenceState.FINISHED and (end := request.end_of(sequence)) is not None
        ]
        self._output.replace_leader(request)
        return TokensBatch([], [], finished) if finished else None
